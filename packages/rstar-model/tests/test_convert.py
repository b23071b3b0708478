from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from rstar_model.convert import CHECKPOINT_FILE, convert  # noqa: E402
from rstar_model.tokenizer import load_tokenizer  # noqa: E402
from rstar_model.weights import model_tensors, state_checksum  # noqa: E402
from rstar_protos.errors import UserInputError  # noqa: E402


def checksum_of(folder: Path) -> str:
    return state_checksum(model_tensors(transformers.AutoModelForCausalLM.from_pretrained(folder)))


def test_a_checkpoint_becomes_a_folder_that_loads(tmp_path: Path, model_folder: Path, tiny_llama) -> None:
    with torch.no_grad():
        for parameter in tiny_llama.parameters():
            parameter.add_(0.5)
    (tmp_path / "checkpoint").mkdir()
    torch.save({"model": tiny_llama.state_dict(), "optimizer": {}}, tmp_path / "checkpoint" / CHECKPOINT_FILE)
    manifest = convert(tmp_path / "checkpoint", tmp_path / "out", base=model_folder)
    assert manifest.checksum == checksum_of(tmp_path / "out") == state_checksum(model_tensors(tiny_llama))
    assert load_tokenizer(tmp_path / "out").eos_ids


def test_the_dtype_of_a_folder_is_changed(tmp_path: Path, model_folder: Path) -> None:
    convert(model_folder, tmp_path / "out", dtype="bfloat16")
    assert transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out").dtype == torch.bfloat16


def test_a_gguf_file_becomes_a_folder(tmp_path: Path, gguf_file, tiny_llama) -> None:
    gguf_file(tmp_path / "m.gguf")
    convert(tmp_path / "m.gguf", tmp_path / "out")
    assert checksum_of(tmp_path / "out") == state_checksum(model_tensors(tiny_llama))
    assert {path.name for path in tmp_path.iterdir()} == {"m.gguf", "out"}


def test_a_checkpoint_needs_its_base(tmp_path: Path) -> None:
    (tmp_path / CHECKPOINT_FILE).write_bytes(b"")
    with pytest.raises(UserInputError, match="base"):
        convert(tmp_path, tmp_path / "out")


@pytest.mark.parametrize("content", [b"junk", None])
def test_a_foreign_checkpoint_is_the_users_error(tmp_path: Path, model_folder: Path, content: bytes | None) -> None:
    if content is None:
        torch.save({"model": {"other": torch.zeros(1)}}, tmp_path / CHECKPOINT_FILE)
    else:
        (tmp_path / CHECKPOINT_FILE).write_bytes(content)
    with pytest.raises(UserInputError, match="checkpoint"):
        convert(tmp_path, tmp_path / "out", base=model_folder)
    assert not (tmp_path / "out").exists()


def test_an_existing_target_is_left_alone(tmp_path: Path, model_folder: Path) -> None:
    with pytest.raises(UserInputError, match="target"):
        convert(model_folder, tmp_path)


def test_anything_else_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(UserInputError, match="source"):
        convert(tmp_path, tmp_path / "out")


def test_shards_need_their_base_and_are_refused_when_unreadable(tmp_path: Path, model_folder: Path) -> None:
    shards = tmp_path / "checkpoint" / "shards" / "learner"
    shards.mkdir(parents=True)
    with pytest.raises(UserInputError, match="base"):
        convert(tmp_path / "checkpoint", tmp_path / "out")
    (shards / "mp_rank_00_model_states.pt").write_bytes(b"junk")
    with pytest.raises(UserInputError, match="checkpoint"):
        convert(tmp_path / "checkpoint", tmp_path / "out", base=model_folder)
    assert not (tmp_path / "out").exists()


def test_a_module_written_without_zero_becomes_a_folder_that_loads(
    tmp_path: Path, model_folder: Path, tiny_llama
) -> None:
    shards = tmp_path / "checkpoint" / "shards" / "learner"
    shards.mkdir(parents=True)
    with torch.no_grad():
        for parameter in tiny_llama.parameters():
            parameter.add_(0.5)
    module = {f"model.{name}": value for name, value in tiny_llama.state_dict().items()}
    torch.save({"module": module}, shards / "mp_rank_00_model_states.pt")
    manifest = convert(tmp_path / "checkpoint", tmp_path / "out", base=model_folder)
    assert manifest.checksum == checksum_of(tmp_path / "out") == state_checksum(model_tensors(tiny_llama))
    assert load_tokenizer(tmp_path / "out").eos_ids
