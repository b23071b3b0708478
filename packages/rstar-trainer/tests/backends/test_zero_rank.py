"""DeepSpeed ranks against the learner of a single process: the same gradients, losses, weights; and resuming."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deepspeed")

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1800)]

HOST = Path(__file__).parent / "hosts" / "zero_parity.py"
STAGES = (0, 1, 2, 3)
RANKS = (1, 2)


def run_ranks(ranks: int, model: Path, out: Path, micro_batch_tokens: int) -> dict[str, Any]:
    """Runs the host with all stages and returns what rank 0 found, by stage."""
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
    command = [sys.executable, str(HOST), str(model), str(out), ",".join(map(str, STAGES)), str(micro_batch_tokens)]
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


@pytest.fixture(scope="module", params=RANKS, ids=lambda ranks: f"{ranks}-ranks")
def results(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of SmolLM2 in float32. The batch makes an odd number of micro-batches: one rank has to fill in."""
    from rstar_model.fetch import fetch

    out = tmp_path_factory.mktemp("ranks")
    return run_ranks(request.param, fetch("smollm2-135m").path, out, micro_batch_tokens=100)


@pytest.mark.parametrize("stage", STAGES)
def test_gradients_are_those_of_a_single_process(results: dict[str, Any], stage: int) -> None:
    assert len(results[str(stage)]["gradients"]) == 4  # supervised, one update, two updates
    assert max(results[str(stage)]["gradients"]) <= 1e-4


@pytest.mark.parametrize("stage", STAGES)
def test_losses_and_norms_are_those_of_a_single_process(results: dict[str, Any], stage: int) -> None:
    for found, expected in results[str(stage)]["losses"]:
        assert found == pytest.approx(expected, abs=1e-5)
    for kind in ("norms", "mismatch"):
        for found, expected in results[str(stage)][kind]:
            assert found == pytest.approx(expected, rel=1e-4)
    for found, expected in results[str(stage)]["tokens"]:
        assert found == expected


@pytest.mark.parametrize("stage", STAGES)
def test_weights_that_engines_are_sent_are_those_of_a_single_process(results: dict[str, Any], stage: int) -> None:
    found = results[str(stage)]
    assert found["names"]
    # AdamW's first steps move a weight by the learning rate whatever its gradient: rounding can turn their signs.
    assert found["weights"] <= 0.05 * found["moved"]


@pytest.mark.parametrize("stage", STAGES)
def test_a_resumed_learner_continues_bit_for_bit(results: dict[str, Any], stage: int) -> None:
    went_on, resumed = results[str(stage)]["resumed"]
    assert went_on == resumed
