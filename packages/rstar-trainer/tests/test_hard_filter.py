"""The offline hard-problem filter."""

from __future__ import annotations

from rstar_eval.problems import EvalProblem
from rstar_eval.report import Report
from rstar_eval.sample import SampleRecord
from rstar_eval.scoring import Verdict
from rstar_eval.settings import EvalSettings
from rstar_model.ledger import TokenLedger
from rstar_model.trajectory import Trajectory
from rstar_model.types import EndReason
from rstar_trainer.data import TrainProblem
from rstar_trainer.hard_filter import choose_candidates, keep_hard

PROBLEMS = [TrainProblem(f"p{i}", f"text {i}", str(i), "test") for i in range(4)]


def _report(rewards: dict[str, list[float | None]]) -> Report:
    settings = EvalSettings(samples=4, temperature=1.0)
    rows = []
    for problem_id, values in rewards.items():
        for index, reward in enumerate(values):
            trajectory = Trajectory(
                f"{problem_id}/{index}", problem_id, "g", index, TokenLedger(), (), EndReason.ANSWERED, 1, 1
            )
            verdict = Verdict("unscorable" if reward is None else "correct" if reward else "wrong", reward)
            problem = EvalProblem(problem_id, "text", "1")
            rows.append(SampleRecord.of(problem, trajectory, verdict, policy="p", settings=settings.sampling_key))
    return Report.of(rows, settings)


def test_what_is_solved_every_time_is_dropped() -> None:
    report = _report({"p0": [1, 1], "p1": [1, 0], "p2": [0, 0], "p3": [1, 1]})
    left = keep_hard(PROBLEMS, report, at_least=1)
    assert [problem.problem_id for problem in left.problems] == ["p1", "p2"]
    assert (left.solved, left.returned) == (2, 0)


def test_unscorable_samples_do_not_count_and_a_problem_without_any_is_hard() -> None:
    left = keep_hard(PROBLEMS[:2], _report({"p0": [1, None], "p1": [None, None]}), at_least=1)
    assert [problem.problem_id for problem in left.problems] == ["p1"]


def test_solved_problems_are_put_back_to_fill_a_step() -> None:
    report = _report({f"p{i}": [1, 1] for i in range(4)})
    left = keep_hard(PROBLEMS, report, at_least=3)
    assert [problem.problem_id for problem in left.problems] == ["p0", "p1", "p2"]
    assert (left.solved, left.returned) == (4, 3)


def test_candidates_follow_from_the_seed() -> None:
    assert choose_candidates(PROBLEMS, 2, 5) == choose_candidates(PROBLEMS, 2, 5)
    assert sorted(p.problem_id for p in choose_candidates(PROBLEMS, 9, 5)) == ["p0", "p1", "p2", "p3"]
