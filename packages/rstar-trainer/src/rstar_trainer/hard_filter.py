"""The offline hard-problem filter: what the current policy solves every time teaches it nothing.

Paper section 4: before stage 3 the policy answers each problem 8 times, and problems with 8/8 correct are dropped.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from rstar_eval.report import Report
from rstar_trainer.data import TrainProblem

__all__ = ["FilteredProblems", "choose_candidates", "keep_hard"]


@dataclass(frozen=True)
class FilteredProblems:
    """What the filter left.

    Attributes:
        problems: in the order of the candidates.
        solved: candidates that were solved every time.
        returned: solved candidates that were put back because too few were left.
    """

    problems: tuple[TrainProblem, ...]
    solved: int
    returned: int


def choose_candidates(problems: Sequence[TrainProblem], count: int, seed: int) -> list[TrainProblem]:
    """`count` problems (or all, when there are fewer), drawn without replacement."""
    chooser = random.Random(seed)  # noqa: S311 - choice of problems, not security
    return chooser.sample(list(problems), min(count, len(problems)))


def keep_hard(candidates: Sequence[TrainProblem], report: Report, at_least: int) -> FilteredProblems:
    """Drops the candidates whose samples are all correct.

    Args:
        candidates: that the policy answered.
        report: of these answers. A problem without a scored sample counts as hard.
        at_least: a step needs so many problems; when fewer are left, solved ones are put back, in order.
    """
    rewards: defaultdict[str, list[float]] = defaultdict(list)
    for row in report.rows:
        if row.reward is not None:
            rewards[row.problem_id].append(row.reward)
    solved = [p for p in candidates if rewards[p.problem_id] and min(rewards[p.problem_id]) == 1]
    dropped = {problem.problem_id for problem in solved}
    returned = solved[: max(0, at_least - (len(candidates) - len(solved)))]
    dropped -= {problem.problem_id for problem in returned}
    kept = tuple(problem for problem in candidates if problem.problem_id not in dropped)
    return FilteredProblems(kept, len(solved), len(returned))
