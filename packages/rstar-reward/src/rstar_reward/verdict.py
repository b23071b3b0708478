"""What judging an answer can come to, and what each outcome is worth."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["Verdict", "VerdictStatus"]


class VerdictStatus(str, Enum):
    """The outcomes. The policy must not be able to make its failures disappear, so only the last two exclude."""

    CORRECT = "correct"
    WRONG = "wrong"
    NO_ANSWER = "no_answer"
    """Nothing was declared, or the rollout did not finish."""
    HEDGED = "hedged"
    """Several alternatives were declared where one was asked for."""
    TOO_COMPLEX = "too_complex"
    """The declared answer exceeds the static limits, or the memory of a worker."""
    TIMEOUT = "timeout"
    """Comparing the declared answer took longer than the deadline."""
    BAD_GOLD = "bad_gold"
    """The reference answer itself cannot be used."""
    UNSCORABLE = "unscorable"
    """The infrastructure failed, of the rollout or of the judge."""

    @property
    def reward(self) -> float | None:
        """1 for correct, None where the rollout is left out of its group, else 0."""
        if self is VerdictStatus.CORRECT:
            return 1.0
        return None if self in (VerdictStatus.BAD_GOLD, VerdictStatus.UNSCORABLE) else 0.0


@dataclass(frozen=True)
class Verdict:
    """The judgement of one answer."""

    status: VerdictStatus
    reason: str
    """One line for people; never shown to a policy."""
    extracted: str | None = None
    """The declared answer as it was written, None when there was none."""

    @property
    def reward(self) -> float | None:
        """1.0, 0.0, or None where the rollout is excluded from its group."""
        return self.status.reward
