"""Gradients of DeepSpeed ranks against those of a single process on SmolLM2-135M: python checks/parity_smollm2.py

Float32, 1 and 2 ranks, ZeRO 0 to 3: ||g - g_ref|| / ||g_ref|| over all parameters, for a supervised update, a rollout
step of one update and one of two. Each variant has processes of its own, one variant after another, and the reference
lies in a file, so that a rank needs about 4 GB. Prints a table; ends with status 1 when a distance exceeds 1e-4, a loss
is off by more than 1e-5, or the machine runs short of memory. Takes half an hour on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "backends" / "hosts"))

_MOST, _MOST_LOSS = 1e-4, 1e-5
_MICRO_BATCH_TOKENS = 100
_GIGABYTE = 1 << 30


def reference(model: Path, folder: Path) -> None:
    """Writes the gradients of every update and the losses of the single process."""
    import torch
    from zero_parity import OPTIMIZER, sequences, updates

    from rstar_model.policy import Policy
    from rstar_trainer.learner import TorchLearner

    class Writer(TorchLearner):
        gradients: list[Any]

        def _step(self, learning_rate: float) -> float:
            named = {name: p.grad for name, p in self.policy.model.named_parameters()}
            torch.save(named, folder / f"gradient-{len(list(folder.glob('gradient-*.pt')))}.pt")
            return super()._step(learning_rate)

    learner = Writer(Policy.load(model, autocast=None), OPTIMIZER, "float32")
    made = updates(learner, sequences(learner.policy.config.vocab_size), _MICRO_BATCH_TOKENS)
    (folder / "losses.json").write_text(json.dumps([metrics.loss for metrics in made]))


def one_rank(model: Path, folder: Path, stage: int) -> None:
    """One rank of a variant; rank 0 writes what it found."""
    import deepspeed
    import torch
    from zero_parity import OPTIMIZER, sequences, updates

    from rstar_trainer.backends.zero_rank import RankSettings, ZeroRank
    from rstar_trainer.recipe import LearnerSettings, ModelSettings

    distances: list[float] = []

    class Comparer(ZeroRank):
        gradients: list[Any]

        def _step(self, learning_rate: float) -> float:
            path = folder / f"gradient-{len(distances)}.pt"
            expected = torch.load(path, mmap=True, weights_only=True)
            difference = size = 0.0
            for name, parameter in self._policy.model.named_parameters():  # one whole gradient at a time
                found = deepspeed.utils.safe_get_full_grad(parameter) if stage else parameter.grad
                difference += float((found - expected[name]).double().square().sum())
                size += float(expected[name].double().square().sum())
            distances.append((difference / size) ** 0.5)
            return super()._step(learning_rate)

    learner_settings = LearnerSettings(backend="deepspeed", ranks=int(os.environ["WORLD_SIZE"]), zero_stage=stage)
    settings = RankSettings(model, ModelSettings(autocast=None, threads=1), OPTIMIZER, learner_settings, "float32", 1)
    rank = Comparer(settings)
    made = updates(rank, sequences(rank._policy.config.vocab_size), _MICRO_BATCH_TOKENS)
    if os.environ["RANK"] == "0":
        found = {"distances": distances, "losses": [metrics.loss for metrics in made]}
        (folder / "found.json").write_text(json.dumps(found))
    rank.close()


def run(count: int, least_free: float, *arguments: str) -> None:
    """Runs `count` processes of this file as ranks.

    Raises:
        SystemExit: one failed, or the machine ran short of memory.
    """
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    shared = {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": "", "MASTER_ADDR": "127.0.0.1", "LOCAL_RANK": "0"}
    shared |= {"MASTER_PORT": str(port), "WORLD_SIZE": str(count), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, *arguments]
    with tempfile.TemporaryFile() as log:
        started = [
            subprocess.Popen(  # noqa: S603 - this file
                command, stdout=log, stderr=log, env={**os.environ, **shared, "RANK": str(number)}
            )
            for number in range(count)
        ]
        try:
            while any(process.poll() is None for process in started):
                if any(process.poll() for process in started):
                    break
                if _available() < least_free:
                    raise SystemExit(f"less than {least_free:g} GB of memory are free; nothing was compared")
                time.sleep(1)
        finally:
            for process in started:
                if process.poll() is None:
                    process.kill()
                process.wait()
        if any(process.returncode for process in started):
            log.seek(0)
            raise SystemExit(log.read().decode(errors="replace")[-3000:])


def _available() -> float:
    found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    assert found is not None
    return int(found[1]) * 1024 / _GIGABYTE


def main() -> int:
    """Compares all variants and prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", type=Path, help="another model folder; default: smollm2-135m")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--stages", type=int, nargs="+", default=[0, 1, 2, 3])
    parser.add_argument("--least-free", type=float, default=6.0, help="stop when so little memory is left, GB")
    options = parser.parse_args()
    model = options.model
    if model is None:
        from rstar_model.fetch import fetch

        model = fetch("smollm2-135m").path
    failed = False
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(1, options.least_free, "reference", str(model), name)
        expected = json.loads((folder / "losses.json").read_text())
        print(f"{'ranks':>5} {'ZeRO':>4} {'largest distance of gradients':>30} {'of losses':>10}")
        for count in options.ranks:
            for stage in options.stages:
                run(count, options.least_free, "rank", str(model), name, str(stage))
                found = json.loads((folder / "found.json").read_text())
                distance = max(found["distances"])
                loss = max(abs(a - b) for a, b in zip(found["losses"], expected, strict=True))
                print(f"{count:>5} {stage:>4} {distance:>30.1e} {loss:>10.1e}", flush=True)
                failed |= not (distance <= _MOST and loss <= _MOST_LOSS and len(found["distances"]) == 4)
    return int(failed)


if __name__ == "__main__":
    if sys.argv[1:2] == ["reference"]:
        reference(Path(sys.argv[2]), Path(sys.argv[3]))
    elif sys.argv[1:2] == ["rank"]:
        one_rank(Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
    else:
        sys.exit(main())
