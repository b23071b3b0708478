"""Resample-on-Correct: which rollouts of a scored group are trained on, and why.

Pure functions of (rollouts, keep, seed, group_id); the rule is the paper's (arXiv 2508.20722, section 3.2,
equations 4 and 5):

- negatives (reward 0): a uniform random half, ``floor(|neg| / 2)``, unfiltered;
- positives: the other places, drawn one after another without replacement with weight
  ``1 / (p_err + p_format + epsilon)``. The paper gives no rule for a penalty of 0, hence ``epsilon``;
- a shortfall on one side is filled from the other; with no more than ``keep`` scored rollouts all are kept;
- unscorable rollouts (no reward) are left out before anything is counted.

`Mode.RELEASE` follows the published code instead: both sides keep their share of the group (at least two each), the
least penalised positives come first. What is a fault there is not taken over: any counts are legal, the negatives and
ties among positives are drawn and not taken in the order of arrival, and failures are typed statuses, not a word in a
tool's output.

Rollouts are sorted by id before any draw, so the order in which they arrive has no influence.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from rstar_model.trajectory import Trajectory
from rstar_model.types import EndReason
from rstar_protos.errors import UserInputError

__all__ = [
    "DEFAULT_EPSILON",
    "DEFAULT_MINIMUM",
    "Decision",
    "Mode",
    "Reason",
    "RejectReason",
    "Resampled",
    "ScoredRollout",
    "error_penalty",
    "format_penalty",
    "kept_counts",
    "release_counts",
    "resample_on_correct",
]

DEFAULT_EPSILON = 0.1
DEFAULT_MINIMUM = 2
"""Positives and negatives that `Mode.RELEASE` keeps at least, as the published training script sets it."""


class Mode(str, Enum):
    """Which rule chooses."""

    PAPER = "paper"
    RELEASE = "release"


class RejectReason(str, Enum):
    """Why a group teaches nothing."""

    NOTHING_SCORED = "nothing_scored"
    ALL_CORRECT = "all_correct"
    ALL_WRONG = "all_wrong"
    EQUAL_REWARDS = "equal_rewards"
    """The kept rewards are equal, though the group's were not all 1 or all 0."""


class Reason(str, Enum):
    """Why a rollout was kept or dropped."""

    KEPT_POSITIVE = "kept_positive"
    KEPT_NEGATIVE = "kept_negative"
    KEPT_ALL = "kept_all"
    DROPPED_POSITIVE = "dropped_positive"
    DROPPED_NEGATIVE = "dropped_negative"
    UNSCORABLE = "unscorable"
    KEPT_RANDOM = "kept_random"
    DROPPED_RANDOM = "dropped_random"


@dataclass(frozen=True)
class ScoredRollout:
    """What the resampler needs to know of one rollout; ``reward`` is ``None`` when it is unscorable."""

    trajectory_id: str
    reward: float | None
    tool_calls: int = 0
    failed_tool_calls: int = 0
    answer_tags: int = 0
    turns: int = 1

    @classmethod
    def of(cls, trajectory: Trajectory, reward: float | None) -> ScoredRollout:
        """What counts of a trajectory. One that was cancelled or that the infrastructure ended is unscorable."""
        excluded = trajectory.end_reason in (EndReason.INFRASTRUCTURE, EndReason.CANCELLED)
        return cls(
            trajectory_id=trajectory.trajectory_id,
            reward=None if excluded else reward,
            tool_calls=len(trajectory.tool_calls),
            failed_tool_calls=trajectory.failed_tool_calls,
            answer_tags=trajectory.answer_tags,
            turns=trajectory.turns,
        )


@dataclass(frozen=True)
class Decision:
    """The verdict on one rollout, with the two penalties it was weighed by."""

    trajectory_id: str
    kept: bool
    reason: Reason
    p_err: float
    p_format: float


@dataclass(frozen=True)
class Resampled:
    """The outcome for one group; ``kept_ids`` and ``decisions`` are in order of trajectory id.

    ``rejected`` says that all kept rewards are equal (or nothing was kept): the advantages of such a group
    are all zero, it must count in no denominator. ``reject_reason`` says why, None if it is not. The three counts
    are of the whole group, before the choice.
    """

    kept_ids: tuple[str, ...]
    decisions: tuple[Decision, ...]
    rejected: bool
    reject_reason: RejectReason | None = None
    positives: int = 0
    negatives: int = 0
    unscorable: int = 0


def error_penalty(tool_calls: int, failed_tool_calls: int) -> float:
    """p_err (equation 4): 0.5 without a tool call, otherwise the failed share of all calls."""
    return failed_tool_calls / tool_calls if tool_calls else 0.5


def format_penalty(answer_tags: int, turns: int) -> float:
    """p_format (equation 5): 1 without an answer tag, otherwise min(1, (tags - 1) / turns).

    ``turns`` counts assistant turns, the first included.
    """
    if answer_tags == 0:
        return 1.0
    return min(1.0, (answer_tags - 1) / max(turns, 1))


def kept_counts(positives: int, negatives: int, keep: int) -> tuple[int, int]:
    """How many (positives, negatives) of a group are kept.

    Their sum is ``min(keep, positives + negatives)`` for any counts.
    """
    if positives + negatives <= keep:
        return positives, negatives
    wanted_negatives = min(negatives // 2, keep)
    kept_positives = min(positives, keep - wanted_negatives)
    return kept_positives, keep - kept_positives


def release_counts(
    positives: int,
    negatives: int,
    keep: int,
    minimum_positives: int = DEFAULT_MINIMUM,
    minimum_negatives: int = DEFAULT_MINIMUM,
) -> tuple[int, int]:
    """How many (positives, negatives) `Mode.RELEASE` keeps: in proportion, with a minimum of each.

    Their sum is ``min(keep, positives + negatives)`` for any counts; a half place goes to the positives, and where
    both minima cannot be kept the positives' comes first.
    """
    if positives + negatives <= keep:
        return positives, negatives
    kept_positives = (2 * positives * keep + positives + negatives) // (2 * (positives + negatives))
    kept_positives = min(kept_positives, keep - min(minimum_negatives, negatives, keep))
    kept_positives = max(kept_positives, min(minimum_positives, positives, keep), keep - negatives)
    kept_positives = min(kept_positives, positives)
    return kept_positives, keep - kept_positives


def resample_on_correct(
    rollouts: Sequence[ScoredRollout],
    keep: int,
    *,
    seed: int,
    group_id: str,
    epsilon: float = DEFAULT_EPSILON,
    enabled: bool = True,
    mode: Mode = Mode.PAPER,
    minimum_positives: int = DEFAULT_MINIMUM,
    minimum_negatives: int = DEFAULT_MINIMUM,
) -> Resampled:
    """Choose ``keep`` rollouts of one group.

    Args:
        rollouts: the whole over-sampled group, any count, any order.
        keep: G, at least 1.
        seed: combined with ``group_id``; the same two and the same rollouts give the same choice.
        group_id: the problem instance the rollouts belong to.
        epsilon: added to the penalties of positives before they are inverted, above 0.
        enabled: off keeps ``keep`` scored rollouts uniformly at random (plain GRPO).
        mode: which rule.
        minimum_positives: see `release_counts`; of no meaning in paper mode.
        minimum_negatives: likewise.

    Raises:
        UserInputError: a repeated id, or a value outside its range.
    """
    _check(rollouts, keep, epsilon, minimum_positives, minimum_negatives)
    ordered = sorted(rollouts, key=lambda rollout: rollout.trajectory_id)
    scored = [rollout for rollout in ordered if rollout.reward is not None]
    positives = [rollout for rollout in scored if _is_positive(rollout)]
    negatives = [rollout for rollout in scored if not _is_positive(rollout)]
    digest = hashlib.sha256(f"rstar-roc\0{seed}\0{group_id}".encode()).digest()
    source = random.Random(int.from_bytes(digest, "big"))  # noqa: S311  seeded sampling, not cryptography

    reason = _reason_by_reward
    if len(scored) <= keep:
        kept, reason = {rollout.trajectory_id for rollout in scored}, _reason_all
    elif not enabled:
        kept, reason = _keep_random(scored, keep, source), _reason_random
    elif mode is Mode.RELEASE:
        places = release_counts(len(positives), len(negatives), keep, minimum_positives, minimum_negatives)
        kept = _keep_release(positives, negatives, places, source)
    else:
        kept = _keep_paper(positives, negatives, kept_counts(len(positives), len(negatives), keep), epsilon, source)

    reject_reason = _reject_reason(scored, kept)
    return Resampled(
        kept_ids=tuple(r.trajectory_id for r in ordered if r.trajectory_id in kept),
        decisions=tuple(_decide(r, r.trajectory_id in kept, reason) for r in ordered),
        rejected=reject_reason is not None,
        reject_reason=reject_reason,
        positives=len(positives),
        negatives=len(negatives),
        unscorable=len(ordered) - len(scored),
    )


def _keep_random(rollouts: Sequence[ScoredRollout], places: int, source: random.Random) -> set[str]:
    """Ids of so many, each as likely as any other."""
    return _draw([r.trajectory_id for r in rollouts], [1.0] * len(rollouts), places, source)


def _keep_paper(
    positives: Sequence[ScoredRollout],
    negatives: Sequence[ScoredRollout],
    places: tuple[int, int],
    epsilon: float,
    source: random.Random,
) -> set[str]:
    """Ids that `Mode.PAPER` keeps, for so many (positives, negatives): negatives drawn first, evenly."""
    kept = _keep_random(negatives, places[1], source)
    weights = [1.0 / (sum(_penalties(r)) + epsilon) for r in positives]
    return kept | _draw([r.trajectory_id for r in positives], weights, places[0], source)


def _keep_release(
    positives: Sequence[ScoredRollout],
    negatives: Sequence[ScoredRollout],
    places: tuple[int, int],
    source: random.Random,
) -> set[str]:
    """Ids that `Mode.RELEASE` keeps, for so many (positives, negatives): negatives drawn first, evenly."""
    kept = _keep_random(negatives, places[1], source)
    # In random order first: the sort is stable, so equal penalties stay so.
    drawn = sorted(source.sample(positives, len(positives)), key=lambda r: sum(_penalties(r)))
    return kept | {r.trajectory_id for r in drawn[: places[0]]}


def _decide(rollout: ScoredRollout, kept: bool, reason: Callable[[ScoredRollout, bool], Reason]) -> Decision:
    why = Reason.UNSCORABLE if rollout.reward is None else reason(rollout, kept)
    return Decision(rollout.trajectory_id, kept, why, *_penalties(rollout))


def _reason_all(rollout: ScoredRollout, kept: bool) -> Reason:
    return Reason.KEPT_ALL


def _reason_random(rollout: ScoredRollout, kept: bool) -> Reason:
    return Reason.KEPT_RANDOM if kept else Reason.DROPPED_RANDOM


def _reason_by_reward(rollout: ScoredRollout, kept: bool) -> Reason:
    if _is_positive(rollout):
        return Reason.KEPT_POSITIVE if kept else Reason.DROPPED_POSITIVE
    return Reason.KEPT_NEGATIVE if kept else Reason.DROPPED_NEGATIVE


def _reject_reason(scored: Sequence[ScoredRollout], kept: set[str]) -> RejectReason | None:
    kept_rewards = {r.reward for r in scored if r.trajectory_id in kept}
    if len(kept_rewards) > 1:
        return None
    rewards = {r.reward for r in scored}
    if not rewards:
        return RejectReason.NOTHING_SCORED
    if rewards == {1.0}:
        return RejectReason.ALL_CORRECT
    return RejectReason.ALL_WRONG if rewards == {0.0} else RejectReason.EQUAL_REWARDS


def _is_positive(rollout: ScoredRollout) -> bool:
    return rollout.reward is not None and rollout.reward > 0


def _penalties(rollout: ScoredRollout) -> tuple[float, float]:
    return (
        error_penalty(rollout.tool_calls, rollout.failed_tool_calls),
        format_penalty(rollout.answer_tags, rollout.turns),
    )


def _draw(ids: list[str], weights: list[float], count: int, source: random.Random) -> set[str]:
    """Draw ``count`` ids one after another without replacement, each time in proportion to the weights left."""
    left = list(zip(ids, weights, strict=True))
    drawn: set[str] = set()
    for _ in range(count):
        point = source.random() * math.fsum(weight for _, weight in left)
        index = 0
        # The last one also takes what rounding leaves over.
        while index < len(left) - 1 and point >= left[index][1]:
            point -= left[index][1]
            index += 1
        drawn.add(left.pop(index)[0])
    return drawn


def _check(
    rollouts: Sequence[ScoredRollout], keep: int, epsilon: float, minimum_positives: int, minimum_negatives: int
) -> None:
    if keep < 1:
        raise UserInputError("keep", keep, "a whole number from 1")
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise UserInputError("epsilon", epsilon, "a finite number above 0")
    for field, value in (("minimum_positives", minimum_positives), ("minimum_negatives", minimum_negatives)):
        if value < 0:
            raise UserInputError(field, value, "a whole number from 0")
    seen: set[str] = set()
    for rollout in rollouts:
        if rollout.trajectory_id in seen:
            raise UserInputError("trajectory_id", rollout.trajectory_id, "ids that are unique in the group")
        seen.add(rollout.trajectory_id)
        if rollout.reward is not None and not math.isfinite(rollout.reward):
            raise UserInputError("reward", rollout.reward, "a finite number, or none when unscorable")
        if not 0 <= rollout.failed_tool_calls <= rollout.tool_calls:
            raise UserInputError(
                "failed_tool_calls", rollout.failed_tool_calls, f"0 to tool_calls ({rollout.tool_calls})"
            )
        if rollout.answer_tags < 0 or rollout.turns < 0:
            raise UserInputError("answer_tags, turns", (rollout.answer_tags, rollout.turns), "0 or more")
