"""Another grader, called in this process.

Usage: python -m rstar_reward.bench.contender GRADER WORKLOAD COUNT SEED CPU_SECONDS

GRADER is `math-verify` or `module:function`, a callable (response, gold). Prints one JSON line. A process of its own,
so that a grader that forks, sets alarms or hangs does so here.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import sys
from collections.abc import Callable
from importlib import import_module

from rstar_reward.bench.workloads import pairs_of

__all__ = ["main"]


def main(arguments: list[str]) -> None:
    """Grades until the pairs or the CPU time are used up."""
    name, workload, count, seed, budget = arguments
    grade = _math_verify() if name == "math-verify" else _imported(name)
    pairs = pairs_of(workload, int(count), int(seed))
    # The first calls build tables.
    for pair in pairs_of(workload, 4, int(seed) + 1):
        _judged(grade, pair.response, pair.gold)
    graded = agreed = 0
    own, children = _cpu_seconds()
    for pair in pairs:
        agreed += _judged(grade, pair.response, pair.gold) == pair.right
        graded += 1
        now_own, now_children = _cpu_seconds()
        if now_own - own + now_children - children > float(budget):
            break
    now_own, now_children = _cpu_seconds()
    figures = {
        "graded": graded,
        "agreed": agreed,
        "own_cpu_seconds": now_own - own,
        "cpu_seconds": now_own - own + now_children - children,
    }
    print(json.dumps(figures))


def _judged(grade: Callable[[str, str], object], response: str, gold: str) -> bool:
    # Graders talk; a raised error is a refusal.
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(Exception):
        return bool(grade(response, gold))
    return False


def _cpu_seconds() -> tuple[float, float]:
    """CPU time of this process, and of its children that have ended."""
    times = os.times()
    return times.user + times.system, times.children_user + times.children_system


def _math_verify() -> Callable[[str, str], object]:
    from math_verify import parse, verify  # type: ignore[import-untyped]

    logging.disable(logging.CRITICAL)
    return lambda response, gold: verify(parse(f"\\boxed{{{gold}}}"), parse(response))


def _imported(name: str) -> Callable[[str, str], object]:
    module, _, attribute = name.partition(":")
    grade: Callable[[str, str], object] = getattr(import_module(module), attribute)
    return grade


if __name__ == "__main__":
    main(sys.argv[1:])
