"""Advantage, the step between resampling and loss: kept rollouts of accepted groups become sequences to learn from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rstar_model.trajectory import Trajectory
from rstar_protos.errors import InfrastructureError
from rstar_trainer.objective import group_advantages
from rstar_trainer.recipe import Stage
from rstar_trainer.scored_group import ScoredGroup
from rstar_trainer.sequences import WeightedSequence

__all__ = ["training_sequences", "weighted_sequences"]


def training_sequences(groups: Sequence[ScoredGroup], stage: Stage) -> list[WeightedSequence]:
    """The kept rollouts of accepted groups with their advantages; each rollout weighs once.

    Raises:
        InfrastructureError: the sampling service kept more of a group than it was asked to.
    """
    accepted = [group for group in groups if not group.rejected]
    kept_groups = [group.kept() for group in accepted]
    for group, kept in zip(accepted, kept_groups, strict=True):
        if len(kept) > stage.group_size:
            raise InfrastructureError(
                f"group {group.group_id}: {len(kept)} rollouts kept, more than {stage.group_size}"
            )
    return weighted_sequences(kept_groups, stage)


def weighted_sequences(
    kept_groups: Iterable[Sequence[tuple[Trajectory, float]]], stage: Stage
) -> list[WeightedSequence]:
    """Sequences of the kept rollouts, given with their rewards, of each accepted group."""
    sequences = []
    for number, kept in enumerate(kept_groups):
        advantages = group_advantages([reward for _, reward in kept], stage.loss.advantage)
        sequences += [
            WeightedSequence.from_ledger(trajectory.ledger, number, advantage)
            for (trajectory, _), advantage in zip(kept, advantages, strict=True)
        ]
    # A rollout without a policy token (truncated before its first) has nothing that could be changed.
    return [sequence for sequence in sequences if sequence.policy_tokens]
