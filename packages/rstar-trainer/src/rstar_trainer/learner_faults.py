"""What a learner on several processes can suffer that one in this process cannot."""

from __future__ import annotations

from rstar_protos.errors import InfrastructureError

__all__ = ["LearnerLostError"]


class LearnerLostError(InfrastructureError):
    """A rank died, failed or hung, and all have been ended: the state since the last checkpoint is lost."""
