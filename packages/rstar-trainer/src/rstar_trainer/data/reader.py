"""Problems from files as `rstar_eval.load_problems` reads them, with integer answers where a recipe wants them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from rstar_eval.problems import EvalProblem, load_problems
from rstar_protos.errors import UserInputError
from rstar_trainer.data.problem import TrainProblem, integer_answer


def read_problems(path: Path, *, limit: int = 0, integers_only: bool = False) -> list[TrainProblem]:
    """Reads problems from a JSONL or parquet file, in the layouts of `rstar_eval.problems`.

    Args:
        path: the file.
        limit: read at most so many rows; 0: all.
        integers_only: an answer that is no integer is an error; integers are normalised ("1,000" -> "1000").

    Raises:
        UserInputError: naming file, line and value of the first row that is not usable.
    """
    problems = [_converted(problem) for problem in load_problems(path, limit=limit or None)]
    return [_with_integer(problem) for problem in problems] if integers_only else problems


def _converted(problem: EvalProblem) -> TrainProblem:
    return TrainProblem(
        problem_id=problem.problem_id,
        text=problem.problem,
        answer=problem.answer,
        source=problem.source or problem.where,
        tags=problem.tags,
        where=problem.where,
    )


def _with_integer(problem: TrainProblem) -> TrainProblem:
    integer = integer_answer(problem.answer)
    if integer is None:
        raise UserInputError(problem.where, problem.answer, "an integer, such as 42")
    return dataclasses.replace(problem, answer=integer)
