"""The GRPO objective as pure functions: advantages, token weights, engine correction, clipped loss.

Paper section 3. Only tokens the policy generated have a weight; every function below sees policy tokens alone, so
that no term and no metric can touch a prompt, separator or tool token. KL and entropy are measured and are no terms
of the loss.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

__all__ = [
    "Aggregation",
    "EngineMismatch",
    "PolicyLoss",
    "clipped_policy_loss",
    "engine_mismatch",
    "group_advantages",
    "sequence_token_weights",
    "truncated_engine_weights",
]

Aggregation = Literal["group_token_mean", "batch_token_mean", "sequence_mean", "dr_grpo"]


def group_advantages(rewards: Sequence[float], normalisation: Literal["std", "mean"] = "std") -> list[float]:
    """Advantages of the kept rollouts of one group: (r - mean) / std, or r - mean.

    std is the population standard deviation of the group. Equal rewards, a single rollout included, give zeros.

    Args:
        rewards: rewards of the scored rollouts of one group; any number.
        normalisation: "std" (paper equation 3) or "mean" (Dr. GRPO, arXiv 2503.20783).

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
    policy_tokens: Sequence[int],
    groups: Sequence[int],
    aggregation: Aggregation,
    constant_tokens: int | None = None,
) -> list[float]:
    """Weight of each policy token of each sequence, so that the loss of a batch is a plain weighted sum.

    With |o_i| policy tokens in sequence i, N sequences that have any, and P groups that have any:

    - `group_token_mean` (paper equation 6): 1 / (P sum of |o_j| over the group of i);
    - `batch_token_mean` (released code): 1 / (sum of all |o_j|);
    - `sequence_mean` (GRPO, arXiv 2402.03300, equation 3): 1 / (N |o_i|);
    - `dr_grpo` (arXiv 2503.20783): 1 / (N `constant_tokens`).

    As weights depend on the whole batch alone, the gradient is the same for any micro-batch size and any number of
    ranks.

    Args:
        policy_tokens: number of policy tokens of each sequence.
        groups: group of each sequence.
        aggregation: which mean.
        constant_tokens: divisor of `dr_grpo`, usually the response limit; not used by the others.

    Raises:
        ValueError: `dr_grpo` without a positive divisor.
    """
    per_group: Counter[int] = Counter()
    for count, group in zip(policy_tokens, groups, strict=True):
        per_group[group] += count
    sequences = sum(1 for count in policy_tokens if count)
    if aggregation == "batch_token_mean":
        total = sum(per_group.values())
        return [1.0 / total if total else 0.0] * len(policy_tokens)
    if aggregation == "sequence_mean":
        return [1.0 / (sequences * count) if count else 0.0 for count in policy_tokens]
    if aggregation == "dr_grpo":
        if constant_tokens is None or constant_tokens < 1:
            raise ValueError(f"dr_grpo divides by a constant number of tokens, at least 1, not {constant_tokens}")
        return [1.0 / (sequences * constant_tokens) if count else 0.0 for count in policy_tokens]
    counted = sum(1 for count in per_group.values() if count)
    return [1.0 / (counted * per_group[group]) if per_group[group] else 0.0 for group in groups]


def truncated_engine_weights(old_log_probs: Tensor, engine_log_probs: Tensor, cap: float) -> Tensor:
    """Truncated importance sampling from the engine's policy to the trainer's: min(pi_old / pi_engine, cap).

    Engine and trainer compute the same policy with other kernels and dtypes, so tokens are drawn from a slightly
    different distribution than the one that is trained. Each token's term of the loss is multiplied by this weight,
    which carries no gradient. Not in the paper.

    Args:
        old_log_probs: [policy_tokens], of the trainer at the start of the step.
        engine_log_probs: [policy_tokens], as recorded; nan where there is none, which gives weight 1.
        cap: largest weight, at least 1.
    """
    log_ratio = old_log_probs.detach() - engine_log_probs.to(old_log_probs.dtype)
    return log_ratio.exp().clamp(max=cap).where(log_ratio.isfinite(), torch.ones_like(log_ratio))


@dataclass(frozen=True)
class EngineMismatch:
    """How far engine and trainer disagree about the same tokens, before any update; sums over tokens (0-d tensors).

    Attributes:
        tokens: tokens whose engine log-probability is known.
        absolute_sum: sum of |engine - trainer| log-probability, nats.
        kl_sum: sum of the k3 estimate of KL(engine || trainer): rho - 1 - log rho, rho = pi_trainer / pi_engine.
    """

    tokens: Tensor
    absolute_sum: Tensor
    kl_sum: Tensor


@torch.no_grad()
def engine_mismatch(old_log_probs: Tensor, engine_log_probs: Tensor) -> EngineMismatch:
    """Compares log-probabilities of policy tokens, [policy_tokens] each; nan where the engine gave none."""
    known = engine_log_probs.isfinite()
    log_ratio = old_log_probs[known] - engine_log_probs[known]
    return EngineMismatch(known.sum(), log_ratio.abs().sum(), (log_ratio.exp() - 1.0 - log_ratio).sum())


@dataclass(frozen=True)
class PolicyLoss:
    """The loss of some policy tokens and what is measured beside it: sums (0-d tensors), so that micro-batches add up.

    Attributes:
        loss: scalar with a gradient.
        ratio_sum: sum of importance ratios over tokens.
        clipped_low: tokens whose gradient the lower bound stopped.
        clipped_high: tokens whose gradient the upper bound stopped.
        kl_sum: sum of the k3 estimate of KL(old || new): rho - 1 - log rho.
    """

    loss: Tensor
    ratio_sum: Tensor
    clipped_low: Tensor
    clipped_high: Tensor
    kl_sum: Tensor


def clipped_policy_loss(
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    weights: Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    engine_weights: Tensor | None = None,
) -> PolicyLoss:
    """Clipped policy-gradient loss with separate bounds (paper equation 6; no KL, no entropy term).

    loss = - sum_t w_t c_t min(rho_t A_t, clip(rho_t, 1 - clip_low, 1 + clip_high) A_t), rho_t = exp(new - old).

    Args:
        log_probs: [policy_tokens], of the current policy, with gradient.
        old_log_probs: [policy_tokens], of the policy at the start of the step, without gradient.
        advantages: [policy_tokens].
        weights: [policy_tokens], w from `sequence_token_weights`.
        clip_low: lower bound of the ratio is 1 - clip_low.
        clip_high: upper bound of the ratio is 1 + clip_high.
        engine_weights: [policy_tokens], c from `truncated_engine_weights`; None for 1 throughout.
    """
    log_ratio = log_probs - old_log_probs
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    terms = torch.minimum(ratio * advantages, clipped * advantages)
    if engine_weights is not None:
        terms = terms * engine_weights
    loss = -(weights * terms).sum()
    with torch.no_grad():
        low = ((ratio < 1.0 - clip_low) & (advantages < 0)).sum()
        high = ((ratio > 1.0 + clip_high) & (advantages > 0)).sum()
        kl = (ratio - 1.0 - log_ratio).sum()
    return PolicyLoss(loss, ratio.detach().sum(), low, high, kl)
