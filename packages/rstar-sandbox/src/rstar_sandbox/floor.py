"""The floor: what forking a warmed interpreter and reaping its child costs when nothing is done in between.

No service that gives each call a process of its own can be cheaper; `bench` sets its figures beside it.
`python -m rstar_sandbox.floor TIER,TIER COUNT MODULE,MODULE` prints one JSON line for each tier.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rstar_sandbox._memory import collapse
from rstar_sandbox.tiers import modules_of_tier, tiers_for
from rstar_sandbox.warmup import warm_up
from rstar_sandbox.zygote_process import zygote_environment

__all__ = ["Floor", "measure_floors"]

_UNCOUNTED = 20


@dataclass(frozen=True)
class Floor:
    """Cost of one fork to reap."""

    tier: str
    wall_ms: float
    """Median."""
    cpu_ms: float
    """Mean, parent and child together."""


def measure_floors(warm: Sequence[str], count: int = 200) -> list[Floor]:
    """Measures each tier in a process of its own.

    Args:
        warm: modules that a service imports ahead.
        count: children to fork for each tier.
    """
    answer = subprocess.run(  # noqa: S603 - our own module under our own interpreter
        [sys.executable, "-m", "rstar_sandbox.floor", ",".join(tiers_for(warm)), str(count), ",".join(warm)],
        env=zygote_environment(),
        stdout=subprocess.PIPE,
        check=True,
    )
    return [Floor(**json.loads(line)) for line in answer.stdout.splitlines()]


def _measure(tier: str, count: int) -> Floor:
    walls = []
    for number in range(count + _UNCOUNTED):
        if number == _UNCOUNTED:
            before = _cpu_seconds()
        started = time.perf_counter()
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
        walls.append(time.perf_counter() - started)
    cpu = (_cpu_seconds() - before) / count
    return Floor(tier, statistics.median(walls[_UNCOUNTED:]) * 1000, cpu * 1000)


def _cpu_seconds() -> float:
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _main(tiers: str, count: str, warm: str) -> None:
    modules = [name for name in warm.split(",") if name]
    for tier in tiers.split(","):  # the smallest first: a later one has imported what an earlier one has
        warm_up(modules_of_tier(tier, modules))
        gc.collect()
        gc.freeze()
        collapse()
        print(json.dumps(asdict(_measure(tier, int(count)))), flush=True)


if __name__ == "__main__":
    _main(*sys.argv[1:])
