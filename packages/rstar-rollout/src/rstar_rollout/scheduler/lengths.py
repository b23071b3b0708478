"""How long rollouts become, learned from those that have ended and those that still run.

Rollouts that end early are short ones, so the ones that have ended are a biased sample while a step runs. The
Kaplan-Meier estimate corrects that: the hazard of ending in a range of lengths is the number that ended in it over
the number that came that far, running ones included. Lengths nobody has reached yet are assumed to be reached, so
without data the estimate is the worst case.
"""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["LengthModel"]

_CAUTION = 4.0  # survivors that are assumed beside those seen at each length
_REFRESH = 64  # rollouts that end between two computations of the table


class LengthModel:
    """The survival function of response lengths.

    Args:
        bucket_tokens: resolution.
        decay: weight that what was learned keeps when `next_step` is called, in (0, 1]: the policy changes.
    """

    def __init__(self, bucket_tokens: int = 256, decay: float = 0.5) -> None:
        self.bucket_tokens = bucket_tokens
        self._decay = decay
        self._ended: list[float] = []
        self._cut: list[float] = []
        self._table: list[float] = [1.0]
        self._stale = 0

    @property
    def samples(self) -> float:
        """Weight of the rollouts that it has learned from."""
        return sum(self._ended) + sum(self._cut)

    def add(self, tokens: int, limit: int) -> None:
        """Learn from a rollout that has ended. One that ran into its limit tells only that it came that far."""
        bucket = tokens // self.bucket_tokens
        for counts in (self._ended, self._cut):
            counts.extend([0.0] * (bucket + 1 - len(counts)))
        (self._ended if tokens < limit else self._cut)[bucket] += 1.0
        self._stale += 1

    def refresh(self, running: Iterable[float], force: bool = False) -> bool:
        """Compute the table anew if enough has been learned since; ``running``: lengths of rollouts under way."""
        if not force and self._stale < _REFRESH:
            return False
        self._stale = 0
        size = len(self._ended)
        passed = [0.0] * (size + 1)
        for tokens in running:
            passed[min(int(tokens // self.bucket_tokens), size)] += 1.0
        at_risk = passed[size]
        hazards = [0.0] * size
        for bucket in range(size - 1, -1, -1):
            # A rollout that now is in this bucket has not come through it: no evidence either way.
            at_risk += self._ended[bucket] + self._cut[bucket]
            hazards[bucket] = self._ended[bucket] / (at_risk + _CAUTION)
            at_risk += passed[bucket]
        table = [1.0]
        for hazard in hazards:
            table.append(table[-1] * (1.0 - hazard))
        self._table = table
        return True

    @property
    def survival(self) -> list[float]:
        """Entry i: probability of more than ``i * bucket_tokens`` tokens; the last entry stands for all beyond."""
        return self._table

    def remaining_means(self, limit: int) -> list[float]:
        """Entry i: tokens that a rollout of ``i * bucket_tokens`` is expected to get yet, ``limit`` at most in all."""
        buckets = -(-limit // self.bucket_tokens) + 1
        table = [self._table[min(index, len(self._table) - 1)] for index in range(buckets)]
        means = [0.0] * buckets
        for index in range(buckets - 2, -1, -1):
            width = min(self.bucket_tokens, limit - index * self.bucket_tokens)
            stays = table[index + 1] / table[index] if table[index] > 0 else 0.0
            means[index] = width * (1.0 + stays) / 2 + stays * means[index + 1]
        return means

    def next_step(self) -> None:
        """A step has ended: older lengths count less from now on."""
        self._ended = [count * self._decay for count in self._ended]
        self._cut = [count * self._decay for count in self._cut]
        self.refresh((), force=True)
