"""Figures of an update: sums that micro-batches and ranks add up, and the means that are logged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields

__all__ = ["LossSums", "UpdateMetrics"]


@dataclass
class LossSums:
    """Sums over the policy tokens of some micro-batches. Those of all ranks added up are those of the whole batch.

    Attributes:
        loss: of the objective; over all updates of a step.
        ratio: importance ratios.
        clipped_low: tokens stopped by the lower bound.
        clipped_high: tokens stopped by the upper bound.
        kl: k3 estimate of KL(policy at the start of the step || policy), nats.
        entropy: nats.
        mismatch: |engine - trainer| log-probability, nats.
        mismatch_kl: k3 estimate of KL(engine || trainer), nats.
        mismatch_tokens: tokens that the two sums before are over.
        engine_weight: weights of truncated importance sampling; 1 a token where it is off.
        engine_truncated: tokens whose weight reached the cap.
        tokens: tokens of the sequences, prompts included.
        policy_tokens: tokens that carried loss.
    """

    loss: float = 0.0
    ratio: float = 0.0
    clipped_low: float = 0.0
    clipped_high: float = 0.0
    kl: float = 0.0
    entropy: float = 0.0
    mismatch: float = 0.0
    mismatch_kl: float = 0.0
    mismatch_tokens: float = 0.0
    engine_weight: float = 0.0
    engine_truncated: float = 0.0
    tokens: float = 0.0
    policy_tokens: float = 0.0

    def add(self, other: LossSums) -> None:
        """Adds the sums of further micro-batches."""
        for item in fields(self):
            setattr(self, item.name, getattr(self, item.name) + getattr(other, item.name))

    def to_vector(self) -> list[float]:
        """All sums in a fixed order, for a reduction over ranks."""
        return list(astuple(self))

    @classmethod
    def from_vector(cls, values: Sequence[float]) -> LossSums:
        """What `to_vector` gave, or the element-wise sum of several."""
        return cls(*values)


@dataclass(frozen=True)
class UpdateMetrics:
    """Figures of one update or of all updates of a step, over policy tokens alone.

    Attributes:
        loss: value of the objective (mean over the updates).
        grad_norm: norm before clipping (of the last update).
        tokens: tokens of the sequences that were trained on, prompts included.
        policy_tokens: tokens that carried loss.
        seconds: wall time.
        ratio: mean importance ratio.
        clip_low_share: share of tokens stopped by the lower bound.
        clip_high_share: share of tokens stopped by the upper bound.
        entropy: mean entropy of the policy, nats.
        kl: k3 estimate of KL(policy at the start of the step || policy), nats per token.
        mismatch: mean |engine - trainer| log-probability before the update, nats.
        mismatch_kl: k3 estimate of KL(engine || trainer) before the update, nats per token.
        engine_weight: mean weight of truncated importance sampling; 1 where it is off.
        engine_truncated_share: share of tokens whose weight reached the cap.
        policy_tokens_per_group: mean over accepted groups.
    """

    loss: float
    grad_norm: float
    tokens: int
    policy_tokens: int
    seconds: float
    ratio: float = 1.0
    clip_low_share: float = 0.0
    clip_high_share: float = 0.0
    entropy: float = math.nan
    kl: float = 0.0
    mismatch: float = math.nan
    mismatch_kl: float = math.nan
    engine_weight: float = 1.0
    engine_truncated_share: float = 0.0
    policy_tokens_per_group: float = math.nan

    @classmethod
    def of_supervised(cls, sums: LossSums, grad_norm: float, seconds: float) -> UpdateMetrics:
        """Figures of a supervised update."""
        return cls(sums.loss, grad_norm, int(sums.tokens), int(sums.policy_tokens), seconds)

    @classmethod
    def of_policy(cls, sums: LossSums, *, updates: int, groups: int, grad_norm: float, seconds: float) -> UpdateMetrics:
        """Figures of the updates of a rollout step.

        Args:
            sums: over all of them (and all ranks).
            updates: how many.
            groups: accepted groups of the step.
            grad_norm: of the last update.
            seconds: wall time of all.
        """
        count, known = max(1.0, sums.policy_tokens), sums.mismatch_tokens
        return cls(
            loss=sums.loss / updates,
            grad_norm=grad_norm,
            tokens=int(sums.tokens),
            policy_tokens=int(sums.policy_tokens),
            seconds=seconds,
            ratio=sums.ratio / count,
            clip_low_share=sums.clipped_low / count,
            clip_high_share=sums.clipped_high / count,
            entropy=sums.entropy / count,
            kl=sums.kl / count,
            mismatch=sums.mismatch / known if known else math.nan,
            mismatch_kl=sums.mismatch_kl / known if known else math.nan,
            engine_weight=sums.engine_weight / count,
            engine_truncated_share=sums.engine_truncated / count,
            policy_tokens_per_group=sums.policy_tokens / max(1, groups),
        )
