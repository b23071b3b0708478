"""What a learner on several processes can suffer that one in this process cannot."""

from __future__ import annotations

from rstar_protos.errors import InfrastructureError

__all__ = ["LearnerLosses", "LearnerLostError"]


class LearnerLostError(InfrastructureError):
    """A rank died, failed or hung, and all have been ended: the state since the last checkpoint is lost."""


class LearnerLosses:
    """Counts losses that follow each other without a step done in between.

    Args:
        most: that are allowed.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._count, self._furthest = 0, -1

    def count(self, error: LearnerLostError, global_step: int) -> None:
        """Counts a loss at a step of the run.

        Raises:
            LearnerLostError: there were too many.
        """
        self._count = 1 if global_step > self._furthest else self._count + 1
        self._furthest = max(self._furthest, global_step)
        if self._count > self._most:
            raise LearnerLostError(f"{error} ({self._count} losses without a step in between)") from error
