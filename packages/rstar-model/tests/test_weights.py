from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from rstar_model.policy import Policy  # noqa: E402
from rstar_model.weights import (  # noqa: E402
    MANIFEST_NAME,
    model_tensors,
    parameter_checksums,
    read_manifest,
    state_checksum,
    write_weights,
)
from rstar_protos.errors import UserInputError  # noqa: E402


@pytest.fixture(params=[True, False], ids=["tied", "untied"])
def policy(request: pytest.FixtureRequest, tokenizer_folder: Path) -> Policy:
    config = transformers.LlamaConfig(
        vocab_size=61,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        tie_word_embeddings=request.param,
    )
    policy = Policy.from_config(config)
    policy.source = tokenizer_folder
    return policy


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_engine_that_loads_the_folder_finds_the_checksum(policy: Policy, tmp_path: Path, dtype: str) -> None:
    manifest = write_weights(policy, tmp_path / "w", 3, dtype)
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "w")
    assert model.dtype == getattr(torch, dtype)
    assert state_checksum(model_tensors(model)) == manifest.checksum
    assert parameter_checksums(model_tensors(model).items()) == manifest.parameters


def test_the_manifest_is_read_back(policy: Policy, tmp_path: Path) -> None:
    written = write_weights(policy, tmp_path / "w", 3)
    assert read_manifest(tmp_path / "w") == written
    assert (written.version, written.dtype, written.path) == (3, "float32", tmp_path / "w")


def test_the_folder_has_the_tokenizer_and_no_leftovers(policy: Policy, tmp_path: Path) -> None:
    write_weights(policy, tmp_path / "w", 0)
    write_weights(policy, tmp_path / "w", 1)
    assert read_manifest(tmp_path / "w").version == 1
    assert (tmp_path / "w" / "tokenizer.json").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["w"]


def test_a_failed_write_leaves_the_last_good_folder(policy: Policy, tmp_path: Path, monkeypatch) -> None:
    write_weights(policy, tmp_path / "w", 0)

    def full_disk(*_, **__) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(policy.model, "save_pretrained", full_disk)
    with pytest.raises(OSError, match="no space"):
        write_weights(policy, tmp_path / "w", 1)
    assert read_manifest(tmp_path / "w").version == 0
    assert [path.name for path in tmp_path.iterdir()] == ["w"]


def test_one_flipped_bit_changes_the_checksum_of_its_parameter_only() -> None:
    tensors = {"a": torch.zeros(3, 2), "b": torch.zeros(4)}
    before = parameter_checksums(tensors.items())
    tensors["b"].view(torch.int32)[2] ^= 1  # far below what a log-probability could show
    after = parameter_checksums(tensors.items())
    assert before["a"] == after["a"]
    assert before["b"] != after["b"]


@pytest.mark.parametrize(
    "other",
    [
        {"b": torch.zeros(2, 3)},
        {"a": torch.zeros(3, 2)},
        {"a": torch.zeros(2, 3, dtype=torch.float64)},
        {"a": torch.zeros(2, 3), "b": torch.zeros(0)},
        {"a": -torch.zeros(2, 3)},
    ],
)
def test_names_shapes_dtypes_and_bytes_all_count(other) -> None:
    assert state_checksum(other) != state_checksum({"a": torch.zeros(2, 3)})


def test_order_and_memory_layout_do_not_count() -> None:
    a, b = torch.arange(6.0).reshape(2, 3), torch.ones(2)
    transposed = a.T.contiguous().T
    assert not transposed.is_contiguous()
    assert state_checksum({"a": a, "b": b}) == state_checksum([("b", b), ("a", transposed)])


def test_tied_weights_are_counted_once(policy: Policy) -> None:
    assert ("lm_head.weight" in model_tensors(policy.model)) is not policy.config.tie_word_embeddings


def test_an_unknown_dtype_is_the_users_error(policy: Policy, tmp_path: Path) -> None:
    with pytest.raises(UserInputError, match="int4"):
        write_weights(policy, tmp_path / "w", 0, "int4")


@pytest.mark.parametrize("content", [None, "not json", json.dumps({"version": 1})])
def test_a_missing_or_damaged_manifest_is_the_users_error(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / MANIFEST_NAME).write_text(content)
    with pytest.raises(UserInputError):
        read_manifest(tmp_path)
