"""Which groups of a training step are trained on, and whether further ones are rolled out in place of rejected ones.

A group whose rewards are all equal is rejected by `rstar_rollout.roc` and counts in no denominator. The paper's
recipe trains on what is left; refilling is an option with a number of rounds, so that it always ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from rstar_protos.errors import UserInputError

__all__ = ["GroupSelection", "SelectionOutcome", "select_groups"]


class SelectionOutcome(str, Enum):
    """What the caller does next."""

    COMPLETE = "complete"
    """As many accepted groups as wanted."""
    REFILL = "refill"
    """Roll out further problems and ask again."""
    SHORT = "short"
    """Fewer than wanted and no round left: the step trains on these."""
    SKIP = "skip"
    """None and no round left: a step without an update, which is counted and logged."""


@dataclass(frozen=True)
class GroupSelection:
    """The groups of a step so far, in the order in which they were given; ``refill``: how many more to roll out."""

    outcome: SelectionOutcome
    accepted_ids: tuple[str, ...]
    rejected_ids: tuple[str, ...]
    refill: int = 0


def select_groups(
    groups: Mapping[str, bool], wanted: int, *, rounds_done: int = 0, max_rounds: int = 0
) -> GroupSelection:
    """Choose among the groups of all rounds of a step.

    Args:
        groups: whether each was rejected, by group id.
        wanted: accepted groups that the step should have; more than these are not accepted.
        rounds_done: refill rounds behind us.
        max_rounds: refill rounds at most; 0: the paper's recipe.

    Raises:
        UserInputError: a number out of range.
    """
    if wanted < 1:
        raise UserInputError("wanted", wanted, "a whole number from 1")
    if rounds_done < 0 or max_rounds < 0:
        raise UserInputError("rounds_done, max_rounds", (rounds_done, max_rounds), "0 or more")
    counts = Counter(groups.values())
    accepted = tuple(group_id for group_id, rejected in groups.items() if not rejected)[:wanted]
    rejected_ids = tuple(group_id for group_id, rejected in groups.items() if rejected)
    missing = wanted - counts[False]
    if missing <= 0:
        return GroupSelection(SelectionOutcome.COMPLETE, accepted, rejected_ids)
    if rounds_done < max_rounds:
        return GroupSelection(SelectionOutcome.REFILL, accepted, rejected_ids, missing)
    outcome = SelectionOutcome.SHORT if accepted else SelectionOutcome.SKIP
    return GroupSelection(outcome, accepted, rejected_ids)
