"""A folder written parameter by parameter is the folder that is written at once."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from transformers import AutoModelForCausalLM, LlamaConfig  # noqa: E402 - not without torch

from rstar_model.digests import parameter_digest  # noqa: E402 - as above
from rstar_model.policy import Policy  # noqa: E402 - as above
from rstar_model.weight_folder import WeightFolderWriter  # noqa: E402 - as above
from rstar_model.weights import Canary, read_manifest, write_weights  # noqa: E402 - as above


@pytest.fixture
def policy() -> Policy:
    config = LlamaConfig(
        vocab_size=31,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        tie_word_embeddings=True,
    )
    return Policy.from_config(config, seed=1)


def _write(policy: Policy, folder: Path, **options: object) -> object:
    with WeightFolderWriter(folder, 5, "bfloat16", policy.config, None, **options) as writer:
        for name, parameter in policy.model.named_parameters():
            writer.add(name, parameter)
        return writer.finish()


@pytest.mark.parametrize("file_bytes", [1, 2000, 1 << 30])
def test_manifest_and_model_are_those_of_a_folder_written_at_once(
    policy: Policy, tmp_path: Path, file_bytes: int
) -> None:
    expected = write_weights(policy, tmp_path / "whole", 5, "bfloat16")
    found = _write(policy, tmp_path / "parts", file_bytes=file_bytes)
    assert (found.checksum, dict(found.parameters)) == (expected.checksum, dict(expected.parameters))
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "parts", dtype="auto")
    assert next(loaded.parameters()).dtype == torch.bfloat16
    for a, b in zip(loaded.parameters(), policy.model.parameters(), strict=True):
        assert torch.equal(a, b.bfloat16())


def test_one_file_each_when_files_are_small(policy: Policy, tmp_path: Path) -> None:
    _write(policy, tmp_path / "parts", file_bytes=1)
    count = len(list(policy.model.parameters()))
    assert len(list((tmp_path / "parts").glob(f"model-*-of-{count:05d}.safetensors"))) == count


def test_nothing_is_left_of_a_folder_that_was_not_finished(policy: Policy, tmp_path: Path) -> None:
    with WeightFolderWriter(tmp_path / "parts", 5, "float32", policy.config, None, file_bytes=1) as writer:
        writer.add("a", torch.ones(3))
    assert list(tmp_path.iterdir()) == []


def test_a_parameter_comes_once(policy: Policy, tmp_path: Path) -> None:
    with WeightFolderWriter(tmp_path / "parts", 5, "float32", policy.config, None) as writer:
        writer.add("a", torch.ones(3))
        with pytest.raises(ValueError, match="a was added before"):
            writer.add("a", torch.ones(3))


def test_manifest_keeps_digests_and_canary(policy: Policy, tmp_path: Path) -> None:
    canary = Canary((1, 2, 3), (-0.5, -1.25))
    written = write_weights(policy, tmp_path / "whole", 5, "bfloat16", digests=True, canary=canary)
    found = read_manifest(tmp_path / "whole")
    assert (found.digests, found.canary) == (written.digests, canary)
    expected = {name: parameter_digest(p.detach().bfloat16()) for name, p in policy.model.named_parameters()}
    assert dict(found.digests) == expected
