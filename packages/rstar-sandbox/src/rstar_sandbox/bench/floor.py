"""The floor: fork a warm interpreter, let the child end at once, reap it, on every core. Nothing that forks is faster.

No isolation, no program, no pipes, no transport. Run as a script (`floor.py TIER SECONDS`) in a process of its own, so
that what is forked holds the tier's modules and nothing else.
"""

from __future__ import annotations

import gc
import importlib
import os
import subprocess
import sys
import time
from dataclasses import dataclass

__all__ = ["Floor", "measure_floor"]

_MODULES = {"standard": (), "full": ("numpy", "scipy", "sympy")}


@dataclass(frozen=True)
class Floor:
    """What forking and reaping costs."""

    calls_per_second: float
    """Of all cores together."""
    wall_milliseconds: float
    """From fork to reap, one core, the others busy too."""
    cpu_milliseconds: float
    """Of parent and child."""


def measure_floor(tier: str, seconds: float) -> Floor:
    """Measures on all cores at once.

    Args:
        tier: "standard" or "full".
        seconds: for how long.
    """
    cores = sorted(os.sched_getaffinity(0))
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(  # noqa: S603 - our own file
            [sys.executable, __file__, tier, str(seconds)], stdout=subprocess.PIPE, text=True, env=environment
        )
        for _ in cores
    ]
    rows = [tuple(map(float, process.communicate()[0].split())) for process in processes]
    calls = sum(row[0] for row in rows)
    return Floor(
        sum(row[0] / row[1] for row in rows),
        1000 * sum(row[1] for row in rows) / calls,
        1000 * sum(row[2] for row in rows) / calls,
    )


def _fork_and_reap(seconds: float) -> tuple[int, float, float]:
    before, started, calls = os.times(), time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        calls += 1
    wall, after = time.perf_counter() - started, os.times()
    return calls, wall, sum(after[:4]) - sum(before[:4])


if __name__ == "__main__":
    for name in _MODULES[sys.argv[1]]:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    print(*_fork_and_reap(float(sys.argv[2])))
