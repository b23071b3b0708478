"""The GRPO objective as pure functions: group advantages, token weights, clipped loss.

Paper section 3. Only tokens the policy generated have a weight; every function below sees policy tokens alone, so
that no term and no metric can touch a prompt, separator or tool token.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

__all__ = ["PolicyLoss", "clipped_policy_loss", "group_advantages", "sequence_token_weights"]

Aggregation = Literal["group_token_mean", "batch_token_mean"]


def group_advantages(rewards: Sequence[float], normalisation: Literal["std", "mean"] = "std") -> list[float]:
    """Advantages of the kept rollouts of one group: (r - mean) / std, or r - mean.

    std is the population standard deviation of the group. Equal rewards, a single rollout included, give zeros.

    Args:
        rewards: rewards of the scored rollouts of one group; any number.
        normalisation: "std" (paper equation 3) or "mean".

    Raises:
        ValueError: a reward is not finite; an unscorable rollout must be left out, not passed on.
    """
    if not all(math.isfinite(reward) for reward in rewards):
        raise ValueError(f"rewards must be finite, not {list(rewards)}")
    if not rewards:
        return []
    mean = math.fsum(rewards) / len(rewards)
    centred = [reward - mean for reward in rewards]
    if min(rewards) == max(rewards):
        return [0.0] * len(rewards)
    if normalisation == "mean":
        return centred
    std = math.sqrt(math.fsum(value * value for value in centred) / len(centred))
    return [value / std for value in centred]


def sequence_token_weights(
    policy_tokens: Sequence[int], groups: Sequence[int], aggregation: Aggregation
) -> list[float]:
    """Weight of each policy token of each sequence, so that the loss of a batch is a plain weighted sum.

    `group_token_mean` (paper equation 6): token mean inside each group, then mean over groups.
    `batch_token_mean` (released code): token mean over the batch. As weights depend on the whole batch alone, the
    gradient is the same for any micro-batch size and any number of ranks.

    Args:
        policy_tokens: number of policy tokens of each sequence.
        groups: group of each sequence.
        aggregation: which mean.
    """
    per_group: Counter[int] = Counter()
    for count, group in zip(policy_tokens, groups, strict=True):
        per_group[group] += count
    if aggregation == "batch_token_mean":
        total = sum(per_group.values())
        return [1.0 / total if total else 0.0] * len(policy_tokens)
    counted = sum(1 for count in per_group.values() if count)
    return [1.0 / (counted * per_group[group]) if per_group[group] else 0.0 for group in groups]


@dataclass(frozen=True)
class PolicyLoss:
    """The loss of some policy tokens and what is measured beside it (sums, so that micro-batches add up).

    Attributes:
        loss: scalar with a gradient.
        ratio_sum: sum of importance ratios over tokens.
        clipped_low: tokens whose gradient the lower bound stopped.
        clipped_high: tokens whose gradient the upper bound stopped.
        kl_sum: sum of the k3 estimate of KL(old || new).
    """

    loss: Tensor
    ratio_sum: float
    clipped_low: int
    clipped_high: int
    kl_sum: float


def clipped_policy_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    weights: Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
) -> PolicyLoss:
    """Clipped policy-gradient loss with separate bounds (paper equation 6; no KL, no entropy term).

    loss = - sum_t w_t min(rho_t A_t, clip(rho_t, 1 - clip_low, 1 + clip_high) A_t), rho_t = exp(new - old).

    Args:
        log_probs: float32 [policy_tokens], of the current policy, with gradient.
        old_log_probs: float32 [policy_tokens], of the policy at the start of the step, without gradient.
        advantages: float32 [policy_tokens].
        weights: float32 [policy_tokens], from `sequence_token_weights`.
        clip_low: lower bound of the ratio is 1 - clip_low.
        clip_high: upper bound of the ratio is 1 + clip_high.
    """
    log_ratio = log_probs - old_log_probs
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    loss = -(weights * torch.minimum(ratio * advantages, clipped * advantages)).sum()
    with torch.no_grad():
        low = ((ratio < 1.0 - clip_low) & (advantages < 0)).sum()
        high = ((ratio > 1.0 + clip_high) & (advantages > 0)).sum()
        kl = (ratio - 1.0 - log_ratio).sum()
    return PolicyLoss(loss, float(ratio.detach().sum()), int(low), int(high), float(kl))
