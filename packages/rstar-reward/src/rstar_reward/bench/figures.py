"""The measurement: this package's service through gRPC, math-verify called directly, and a reference grader."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rstar_protos.errors import InfrastructureError, UserInputError
from rstar_protos.service import EmbeddedService
from rstar_reward.bench.workloads import Pair, pairs_of
from rstar_reward.client import RewardClient, ScoreJob

__all__ = ["Figure", "measure"]

_WARM_UP = 64
# In the cached figure every pair is asked for this often, as a group of rollouts repeats its answers.
_REPEATS = 8


@dataclass(frozen=True)
class Figure:
    """What one grader did on one workload."""

    workload: str
    grader: str
    graded: int
    agreed: int
    """How many verdicts are those that the generator of the pairs knows to be right."""
    cpu_seconds: float
    """CPU time of all processes involved, the caller's of a service apart."""
    own_cpu_seconds: float
    """For a grader in the calling process: without the processes that it forked."""

    @property
    def rate(self) -> float:
        """Verdicts per CPU-second."""
        return self.graded / max(self.cpu_seconds, 1e-9)


def measure(
    workload: str, count: int, seed: int, workers: int, reference: str | None, budget_seconds: float
) -> Iterator[Figure]:
    """Figures of one workload, one after another.

    Args:
        workload: `integers` or `hard`.
        count: distinct pairs.
        seed: of the pairs.
        workers: worker processes of the service.
        reference: a grader to compare with, as `module:function`, called as function(response, gold) in a process.
        budget_seconds: CPU time for each grader that is called directly.

    Raises:
        UserInputError: unknown workload, or the reference cannot be imported.
        InfrastructureError: the service failed.
    """
    if not Path("/proc/self/stat").exists():
        raise UserInputError.message("bench needs /proc to count the CPU time of all server processes: run it on Linux")
    pairs = pairs_of(workload, count, seed)
    warm_up = pairs_of(workload, _WARM_UP, seed + 1)
    yield _service(workload, "rstar-reward", pairs, warm_up, workers, cache_size=0)
    repeated = [pair for pair in pairs[: max(len(pairs) // _REPEATS, 1)] for _ in range(_REPEATS)]
    yield _service(workload, "rstar-reward, cached", repeated, warm_up, workers, cache_size=100_000)
    for grader in ["math-verify", *([reference] if reference else [])]:
        yield _called(workload, grader, count, seed, budget_seconds)


def _service(
    workload: str, name: str, pairs: Sequence[Pair], warm_up: Sequence[Pair], workers: int, cache_size: int
) -> Figure:
    command = [sys.executable, "-m", "rstar_reward", "serve"]
    command += ["--workers", str(workers), "--cache-size", str(cache_size)]
    with EmbeddedService("reward", command) as service:
        asyncio.run(_score(service.endpoint, warm_up))
        pid = service.pid
        if pid is None:
            raise InfrastructureError("the reward service ended during the warm-up")
        before = _cpu_of_tree(pid)
        rewards = asyncio.run(_score(service.endpoint, pairs))
        used = _cpu_of_tree(pid) - before
    agreed = sum(reward == float(pair.right) for reward, pair in zip(rewards, pairs, strict=True))
    return Figure(workload, name, len(pairs), agreed, used, used)


async def _score(endpoint: str, pairs: Sequence[Pair]) -> list[float | None]:
    jobs = (ScoreJob(str(index), pair.gold, pair.response) for index, pair in enumerate(pairs))
    async with RewardClient(endpoint) as client:
        rewards = {int(job_id): verdict.reward async for job_id, verdict in client.score_many(jobs)}
    return [rewards[index] for index in range(len(pairs))]


def _called(workload: str, grader: str, count: int, seed: int, budget_seconds: float) -> Figure:
    arguments = [grader, workload, str(count), str(seed), str(budget_seconds)]
    command = [sys.executable, "-m", "rstar_reward.bench.contender", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own module
    if result.returncode:
        last = (result.stderr.strip().splitlines() or ["no message"])[-1]
        raise UserInputError("--reference", grader, f"a MODULE:FUNCTION that can be imported and called ({last})")
    found = json.loads(result.stdout.strip().splitlines()[-1])
    return Figure(workload, grader, found["graded"], found["agreed"], found["cpu_seconds"], found["own_cpu_seconds"])


def _cpu_of_tree(root: int) -> float:
    """CPU seconds of a process and all below it, those included that have ended and were waited for."""
    parents: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
            ticks[int(entry.name)] = sum(map(int, fields[11:15]))
    total, frontier = 0, {root}
    while frontier:
        total += sum(ticks.get(pid, 0) for pid in frontier)
        frontier = {pid for pid, parent in parents.items() if parent in frontier}
    return total / os.sysconf("SC_CLK_TCK")
