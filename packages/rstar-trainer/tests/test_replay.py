"""Stored trajectories give the sequences that the step itself was made from."""

from __future__ import annotations

from pathlib import Path

import pytest

from rstar_eval.scoring import Verdict
from rstar_model.ledger import TokenLedger
from rstar_model.trajectory import Trajectory
from rstar_model.types import EndReason, SpanKind
from rstar_protos.errors import UserInputError
from rstar_rollout.roc import ScoredRollout, resample_on_correct
from rstar_trainer.data import TrainProblem
from rstar_trainer.recipe import Stage
from rstar_trainer.replay import stored_sequences
from rstar_trainer.scored_group import ScoredGroup
from rstar_trainer.training_sequences import training_sequences
from rstar_trainer.trajectory_file import trajectory_file, write_trajectories

STAGE = Stage(
    name="rl-1",
    steps=1,
    problems_per_step=3,
    group_size=2,
    rollouts_per_problem=4,
    max_turns=2,
    max_response_tokens=64,
    learning_rate=1e-5,
)


def _trajectory(group: str, index: int) -> Trajectory:
    ledger = TokenLedger()
    ledger.append(SpanKind.PROMPT, [1, 2, 3])
    ids = [10 + index, 20, 30][: 1 + index % 3]
    ledger.append(SpanKind.POLICY, ids, log_probs=[-0.1 - index] * len(ids), weight_version=1)
    return Trajectory(
        trajectory_id=f"{group}/{index}",
        problem_id=group,
        group_id=group,
        sample_index=index,
        ledger=ledger,
        tool_calls=(),
        end_reason=EndReason.ANSWERED,
        turns=1,
        answer_tags=1,
        wall_seconds=1.0,
        seed=index,
    )


def _group(name: str, rewards: list[float | None]) -> ScoredGroup:
    group = ScoredGroup(name, TrainProblem(name, "text", "7", "test"))
    for index, reward in enumerate(rewards):
        group.trajectories[index] = _trajectory(name, index)
        group.verdicts[index] = Verdict("wrong" if reward is not None else "unscorable", reward, "", None)
    scored = [ScoredRollout(f"{name}/{i}", reward, 0, 0, 1, 1) for i, reward in enumerate(rewards)]
    group.resampled = resample_on_correct(scored, STAGE.group_size, seed=3, group_id=name)
    return group


def test_sequences_are_those_of_the_step(tmp_path: Path) -> None:
    groups = [_group("a", [1.0, 0.0, 0.0, 1.0]), _group("b", [0.0] * 4), _group("c", [0.0, None, 1.0, 0.0])]
    write_trajectories(trajectory_file(tmp_path, STAGE.name, 1), groups)
    found, expected = stored_sequences(tmp_path, STAGE, 1), training_sequences(groups, STAGE)
    assert len(expected) == 4
    for stored, made in zip(found, expected, strict=True):
        assert (stored.token_ids, stored.loss_mask, stored.group, stored.advantage) == (
            made.token_ids,
            made.loss_mask,
            made.group,
            made.advantage,
        )
        assert repr(stored.engine_log_probs) == repr(made.engine_log_probs)  # nan where there is none


def test_a_step_that_was_not_done_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserInputError, match="trajectories"):
        stored_sequences(tmp_path, STAGE, 9)
