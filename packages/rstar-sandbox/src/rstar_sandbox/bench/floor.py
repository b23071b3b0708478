"""The floor: fork a warm interpreter with `os.fork`, let the child end at once, reap it, on every core.

What the interpreter and its modules do after a fork is in it; isolation, program, pipes and transport are not. Run as
`python -m rstar_sandbox.bench.floor TIER SECONDS` in a process of its own, so that what is forked is warm like a zygote
of the tier and holds nothing else.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass

from rstar_sandbox.bench.processor_time import own_seconds
from rstar_sandbox.forkable import make_forkable
from rstar_sandbox.tiers import modules_of_tier
from rstar_sandbox.zygote_process import zygote_environment

__all__ = ["Floor", "measure_floor"]

_MODULES = ("numpy", "scipy", "sympy")


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
        tier: "standard", "sympy" or "full".
        seconds: for how long.
    """
    cores = sorted(os.sched_getaffinity(0))
    command = [sys.executable, "-m", "rstar_sandbox.bench.floor", tier, str(seconds)]
    processes = [
        subprocess.Popen(  # noqa: S603 - our own module
            command, stdout=subprocess.PIPE, text=True, env=zygote_environment()
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
    before, started, calls = own_seconds(), time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        calls += 1
    return calls, time.perf_counter() - started, own_seconds() - before


if __name__ == "__main__":
    make_forkable(modules_of_tier(sys.argv[1], _MODULES))
    print(*_fork_and_reap(float(sys.argv[2])))
