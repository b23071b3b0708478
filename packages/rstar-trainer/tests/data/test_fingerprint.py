"""Fingerprints notice every change that matters."""

import pytest

from rstar_trainer.data import TrainProblem, fingerprint

PROBLEMS = [TrainProblem("a", "one", "1", "s"), TrainProblem("b", "two", "2", "s")]


def test_equal_problems_have_equal_fingerprints() -> None:
    assert fingerprint(PROBLEMS) == fingerprint(iter(list(PROBLEMS)))


@pytest.mark.parametrize(
    "changed",
    [
        PROBLEMS[::-1],
        PROBLEMS[:1],
        [TrainProblem("c", "one", "1", "s"), PROBLEMS[1]],
        [TrainProblem("a", "One", "1", "s"), PROBLEMS[1]],
        [TrainProblem("a", "one", "3", "s"), PROBLEMS[1]],
    ],
)
def test_order_count_id_text_and_answer_count(changed: list[TrainProblem]) -> None:
    assert fingerprint(changed) != fingerprint(PROBLEMS)
