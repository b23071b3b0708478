"""What the learner is given: token sequences with a loss mask, their group and their advantage."""

from __future__ import annotations

import math
from dataclasses import dataclass

from rstar_model.ledger import TokenLedger
from rstar_model.packing import TrainingSequence

__all__ = ["WeightedSequence"]


@dataclass(frozen=True)
class WeightedSequence:
    """One sequence to learn from.

    Attributes:
        token_ids: the ids the engine was given and emitted, prompt included.
        loss_mask: as long as token_ids; True where the policy chose the token.
        engine_log_probs: as long as token_ids; nan where the engine generated nothing, and throughout demonstrations.
        group: number of the group the sequence belongs to, 0 for demonstrations.
        advantage: of every policy token; 0 for demonstrations, whose loss has none.
    """

    token_ids: tuple[int, ...]
    loss_mask: tuple[bool, ...]
    engine_log_probs: tuple[float, ...]
    group: int = 0
    advantage: float = 0.0

    def __post_init__(self) -> None:
        lengths = {len(self.token_ids), len(self.loss_mask), len(self.engine_log_probs)}
        if len(lengths) != 1:
            raise ValueError(f"ids, mask and log-probabilities must be equally long, not {sorted(lengths)}")
        if self.loss_mask and self.loss_mask[0]:
            raise ValueError("the first token has nothing before it and cannot carry loss")
        if not math.isfinite(self.advantage):
            raise ValueError(f"advantage must be finite, not {self.advantage}")

    @classmethod
    def from_ledger(cls, ledger: TokenLedger, group: int = 0, advantage: float = 0.0) -> WeightedSequence:
        """Takes over what the ledger holds, token by token."""
        return cls(tuple(ledger.token_ids), tuple(ledger.loss_mask), tuple(ledger.log_probs), group, advantage)

    @property
    def columns(self) -> TrainingSequence:
        """What packing needs."""
        return TrainingSequence(self.token_ids, self.loss_mask, self.engine_log_probs)

    @property
    def policy_tokens(self) -> int:
        """Number of tokens that carry loss."""
        return sum(self.loss_mask)
