"""How many losses of a rank a run bears."""

from __future__ import annotations

import pytest

from rstar_protos.errors import InfrastructureError
from rstar_trainer.learner_faults import LearnerLosses, LearnerLostError


def test_losses_at_one_step_are_borne_up_to_the_limit() -> None:
    losses = LearnerLosses(2)
    losses.count(LearnerLostError("rank 1 died"), 4)
    losses.count(LearnerLostError("rank 1 died"), 4)
    with pytest.raises(LearnerLostError, match="3 losses without a step in between"):
        losses.count(LearnerLostError("rank 0 died"), 4)


def test_a_step_done_in_between_starts_the_count_anew() -> None:
    losses = LearnerLosses(1)
    for step in range(5):
        losses.count(LearnerLostError("rank 1 died"), step)


def test_going_back_to_a_checkpoint_is_no_step() -> None:
    losses = LearnerLosses(1)
    losses.count(LearnerLostError("rank 1 died"), 4)
    with pytest.raises(LearnerLostError):
        losses.count(LearnerLostError("rank 1 died"), 3)


def test_with_no_restarts_the_first_loss_ends_the_run() -> None:
    with pytest.raises(InfrastructureError):
        LearnerLosses(0).count(LearnerLostError("rank 1 died"), 4)
