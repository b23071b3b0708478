"""What a step has stopped is found again, after a crash too, and only by the problem that it belongs to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rstar_eval.scoring import Verdict
from rstar_model.ledger import Span, TokenLedger
from rstar_model.trajectory import Trajectory
from rstar_model.types import EndReason, SpanKind
from rstar_trainer.carried import CarriedGroups, partial_figures
from rstar_trainer.data import TrainProblem
from rstar_trainer.recipe import CheckpointSettings, Stage
from rstar_trainer.rl_step import _requests
from rstar_trainer.scored_group import ScoredGroup

PROBLEM = TrainProblem("q1", "What is 2 plus 3?", "5", "file")
STAGE = Stage.model_validate(
    {
        "name": "rl-1",
        "steps": 4,
        "problems_per_step": 2,
        "group_size": 2,
        "max_turns": 3,
        "max_response_tokens": 64,
        "learning_rate": 1e-5,
        "loss": {"engine_ratio_cap": 2.0},
        "partial": {"extra_problems": 1, "max_steps": 2},
    }
)


def rollout(index: int, *versions: int, end: EndReason = EndReason.CANCELLED) -> Trajectory:
    spans = [Span(SpanKind.POLICY, (5, 6), (-0.1, -1 / 3), version) for version in versions]
    ledger = TokenLedger([Span(SpanKind.PROMPT, (1, 2)), *spans])
    return Trajectory(f"rl-1/0/q1/{index}", "q1", "rl-1/0/q1", index, ledger, (), end, 1, 0, 1.5, 9)


@pytest.fixture
def group() -> ScoredGroup:
    """Of four rollouts, sample 2 has ended and samples 0 and 1 were stopped."""
    made = ScoredGroup("rl-1/0/q1", PROBLEM)
    made.trajectories[2] = rollout(2, 1, end=EndReason.ANSWERED)
    made.verdicts[2] = Verdict("correct", 1.0, extracted="5")
    made.partial = {index: rollout(index, 1) for index in (0, 1)}
    return made


def files(folder: Path, **settings: int) -> CarriedGroups:
    return CarriedGroups(folder, STAGE, CheckpointSettings(**settings))


def test_group_comes_back_as_it_was_and_one_step_older(tmp_path: Path, group: ScoredGroup) -> None:
    files(tmp_path).write(1, [group])
    found = files(tmp_path).read(1, [PROBLEM])
    assert found.groups == [replace(group, carried=1)]
    assert found.lost == ""


def test_each_step_has_its_own(tmp_path: Path, group: ScoredGroup) -> None:
    carried = files(tmp_path)
    carried.write(1, [group])
    carried.write(2, [])
    assert (len(carried.read(1, [PROBLEM]).groups), len(carried.read(2, [PROBLEM]).groups)) == (1, 0)


@pytest.mark.parametrize("change", [{"text": "What is 2 plus 4?"}, {"answer": "6"}, {"problem_id": "q2"}], ids=str)
def test_group_of_a_problem_that_has_changed_is_dropped_and_told(
    tmp_path: Path, group: ScoredGroup, change: dict[str, str]
) -> None:
    files(tmp_path).write(1, [group])
    found = files(tmp_path).read(1, [replace(PROBLEM, **change)])
    assert found.groups == []
    assert found.lost.startswith("1 groups")


def test_file_that_is_missing_or_cut_is_told(tmp_path: Path, group: ScoredGroup) -> None:
    carried = files(tmp_path)
    assert "step-000001" in carried.read(1, [PROBLEM]).lost
    carried.write(1, [group])
    (path,) = tmp_path.glob("carried/rl-1/*")
    path.write_bytes(path.read_bytes()[:-20])
    found = carried.read(1, [PROBLEM])
    assert (found.groups, "cannot be read" in found.lost) == ([], True)


def test_files_are_kept_as_far_back_as_a_resume_may_go(tmp_path: Path) -> None:
    carried = files(tmp_path, keep=2, every_steps=3)
    for step in range(1, 31):
        carried.write(step, [])
    assert sorted(int(path.name[5:11]) for path in tmp_path.glob("carried/rl-1/*")) == list(range(21, 31))


def test_only_what_a_group_lacks_is_asked_for(group: ScoredGroup) -> None:
    first, second = _requests(group, STAGE)
    assert (list(first.sample_indices), [p.sample_index for p in first.partial]) == ([0, 1], [0, 1])
    assert (list(second.sample_indices), second.partial) == ([3], ())


@pytest.mark.parametrize(("carried", "must"), [(0, False), (1, False), (2, True)])
def test_group_that_has_waited_long_enough_must_finish(group: ScoredGroup, carried: int, must: bool) -> None:
    assert {request.must_finish for request in _requests(replace(group, carried=carried), STAGE)} == {must}


def test_figures_count_tokens_of_other_weights(group: ScoredGroup) -> None:
    done = replace(group, trajectories={0: rollout(0, 1, 2), 1: rollout(1, 2), 2: rollout(2, 2)})
    assert partial_figures([done], [group], 2) == {
        "groups_carried": 1.0,
        "rollouts_stopped": 2.0,
        "rollouts_off_policy": 1.0,
        "off_policy_token_share": 0.25,
    }
