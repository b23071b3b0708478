"""A group on its way through a step: its rollouts, their verdicts, and which of them are trained on."""

from __future__ import annotations

from dataclasses import dataclass, field

from rstar_eval.scoring import Verdict
from rstar_model.trajectory import Trajectory
from rstar_rollout.roc import Resampled
from rstar_trainer.data import TrainProblem

__all__ = ["ScoredGroup"]


@dataclass
class ScoredGroup:
    """All rollouts of one problem instance, their verdicts, and which of them are trained on.

    Attributes:
        group_id: names the step that began it.
        problem: its problem.
        trajectories: rollouts that have ended, by sample index.
        verdicts: of them.
        resampled: set when the group is complete.
        partial: rollouts that a step has stopped, by sample index; the next step goes on with them.
        carried: steps that have ended without it.
    """

    group_id: str
    problem: TrainProblem
    trajectories: dict[int, Trajectory] = field(default_factory=dict)
    verdicts: dict[int, Verdict] = field(default_factory=dict)
    resampled: Resampled | None = None
    partial: dict[int, Trajectory] = field(default_factory=dict)
    carried: int = 0

    @property
    def policy_tokens(self) -> int:
        """Generated so far, whatever became of them."""
        return sum(t.policy_tokens for found in (self.trajectories, self.partial) for t in found.values())

    @property
    def rejected(self) -> bool:
        """Equal rewards, or nothing scored: the group teaches nothing and counts in no denominator."""
        return self.resampled is None or self.resampled.rejected

    @property
    def rewards(self) -> list[float]:
        """Rewards of the scored rollouts before resampling, by sample index."""
        found = [self.verdicts[index].reward for index in sorted(self.verdicts)]
        return [reward for reward in found if reward is not None]

    def kept(self) -> list[tuple[Trajectory, float]]:
        """The kept rollouts with their rewards, by sample index."""
        ids = set(self.resampled.kept_ids) if self.resampled else set()
        pairs = [(self.trajectories[index], self.verdicts[index].reward) for index in sorted(self.verdicts)]
        return [(t, reward) for t, reward in pairs if t.trajectory_id in ids and reward is not None]
