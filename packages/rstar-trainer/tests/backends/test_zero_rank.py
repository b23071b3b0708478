"""DeepSpeed ranks against the learner of a single process: the same gradients, losses, weights; and resuming."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deepspeed")

from safetensors.torch import load_file

from rstar_model.convert import convert
from rstar_model.weights import state_checksum
from rstar_protos.errors import UserInputError

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1800)]

HOST = Path(__file__).parent / "hosts" / "zero_parity.py"
STAGES = ("0", "1", "2", "3")
OTHERS = ("2offload", "3offload", "1bfloat16", "3bfloat16", "0sequence", "3sequence")
RANKS = (1, 2)


def run_ranks(ranks: int, model: Path, out: Path, variants: Sequence[str], *more: str) -> dict[str, Any]:
    """Runs the host and returns what rank 0 found, by variant."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    shared = {
        **os.environ,
        "DS_ACCELERATOR": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": "0",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, str(HOST), str(model), str(out), ",".join(variants), *more]
    logs = [out / f"rank-{rank}.log" for rank in range(ranks)]
    started = []
    for rank, log in enumerate(logs):
        with log.open("wb") as file:
            started.append(subprocess.Popen(command, stdout=file, stderr=file, env={**shared, "RANK": str(rank)}))
    try:
        codes = [process.wait(1500) for process in started]
    finally:
        for process in started:
            process.kill()
    assert codes == [0] * ranks, "\n".join(log.read_text(errors="replace")[-3000:] for log in logs)
    found: dict[str, Any] = json.loads((out / "results.json").read_text())
    return found


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model, as a folder."""
    from transformers import LlamaConfig

    from rstar_model.policy import Policy

    config = LlamaConfig(
        vocab_size=97,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    folder = tmp_path_factory.mktemp("model")
    policy = Policy.from_config(config, seed=3)
    # Weights that bfloat16 can hold, as published ones: what starts from them loses nothing.
    policy.model.bfloat16().float()
    policy.save(folder)
    return folder


@pytest.fixture(scope="module", params=RANKS, ids=lambda ranks: f"{ranks}-ranks")
def results(request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """In float32. The batch makes an odd number of micro-batches: one rank has to fill in."""
    return run_ranks(request.param, model, tmp_path_factory.mktemp("ranks"), STAGES, "60")


@pytest.fixture(scope="module")
def resumable(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """On two ranks: every stage and the other variants, each resumed from its shards; "folder": where they are."""
    folder = tmp_path_factory.mktemp("ranks")
    return {**run_ranks(2, model, folder, [*STAGES, *OTHERS], "60", "resume"), "folder": folder}


@pytest.mark.parametrize("stage", STAGES)
def test_gradients_are_those_of_a_single_process(results: dict[str, Any], stage: str) -> None:
    assert len(results[stage]["gradients"]) == 4  # supervised, one update, two updates
    assert max(results[stage]["gradients"]) <= 1e-4


@pytest.mark.parametrize("stage", STAGES)
def test_losses_and_norms_are_those_of_a_single_process(results: dict[str, Any], stage: str) -> None:
    for found, expected in results[stage]["losses"]:
        assert found == pytest.approx(expected, abs=1e-5)
    for kind in ("norms", "mismatch"):
        for found, expected in results[stage][kind]:
            assert found == pytest.approx(expected, rel=1e-4)
    for found, expected in results[stage]["tokens"]:
        assert found == expected


@pytest.mark.parametrize("stage", STAGES)
def test_weights_that_engines_are_sent_are_those_of_a_single_process(results: dict[str, Any], stage: str) -> None:
    found = results[stage]
    assert found["names"]
    # AdamW's first steps move a weight by the learning rate whatever its gradient: rounding can turn their signs.
    assert found["weights"] <= 0.05 * found["moved"]
    assert found["exported"] <= 0.05 * found["moved"]


@pytest.mark.parametrize("variant", ["2offload", "3offload"])
def test_an_optimizer_on_the_host_makes_the_same_update(resumable: dict[str, Any], variant: str) -> None:
    assert max(resumable[variant]["gradients"]) <= 1e-4
    assert resumable[variant]["weights"] <= 0.05 * resumable[variant]["moved"]


@pytest.mark.parametrize("variant", ["0sequence", "3sequence"])
def test_ranks_that_share_each_sequence_make_the_same_update(resumable: dict[str, Any], variant: str) -> None:
    found = resumable[variant]
    assert len(found["gradients"]) == 4
    assert max(found["gradients"]) <= 1e-4
    for loss, expected in found["losses"]:
        assert loss == pytest.approx(expected, abs=1e-5)
    for figure, expected in [*found["norms"], *found["mismatch"], *found["tokens"]]:
        assert figure == pytest.approx(expected, rel=1e-4)
    assert found["weights"] <= 0.05 * found["moved"]


@pytest.mark.parametrize("variant", ["1bfloat16", "3bfloat16"])
def test_bfloat16_parameters_have_float32_masters(resumable: dict[str, Any], variant: str) -> None:
    found = resumable[variant]
    for loss, expected in found["losses"]:
        assert loss == pytest.approx(expected, abs=0.02)
    # The exported masters move by steps that bfloat16 would round away; what engines are sent is rounded.
    assert found["exported"] <= 0.7 * found["exported_moved"]
    assert found["exported"] < found["weights"]


@pytest.mark.parametrize("variant", [*STAGES, *OTHERS])
def test_a_resumed_learner_continues_bit_for_bit(resumable: dict[str, Any], variant: str) -> None:
    went_on, resumed = resumable[variant]["resumed"]
    assert went_on == resumed != ""


@pytest.mark.parametrize("variant", [*STAGES, *OTHERS])
def test_shards_are_converted_to_the_policy_that_the_ranks_export(
    resumable: dict[str, Any], model: Path, tmp_path: Path, variant: str
) -> None:
    """Bit for bit, in a process that is no rank."""
    folder = resumable["folder"]
    (tmp_path / "shards").symlink_to(folder / f"shards-{variant}")
    manifest = convert(tmp_path, tmp_path / "out", base=model)
    found, expected = (
        load_file(each / "model.safetensors") for each in (tmp_path / "out", folder / f"export-{variant}")
    )
    assert found.keys() == expected.keys()
    assert all((found[name] == tensor).all() for name, tensor in expected.items())
    assert manifest.checksum == state_checksum(found)


def test_shards_of_a_rank_that_are_missing_or_of_another_model_are_the_users_error(
    resumable: dict[str, Any], model: Path, tmp_path: Path
) -> None:
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(resumable["folder"] / "shards-3", checkpoint / "shards")
    other = json.loads((model / "config.json").read_text())
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text(json.dumps({**other, "vocab_size": 98}))
    with pytest.raises(UserInputError, match=r"checkpoint.*embed_tokens.*shape \(97, 32\) instead of \(98, 32\)"):
        convert(checkpoint, tmp_path / "out", base=tmp_path / "other")
    (checkpoint / "shards" / "learner" / "zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
    with pytest.raises(UserInputError, match=r"checkpoint.*the shards of all ranks"):
        convert(checkpoint, tmp_path / "out", base=model)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint", "other"]
