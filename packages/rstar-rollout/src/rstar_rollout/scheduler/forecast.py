"""How full an engine's KV cache will become: the peak, over the steps ahead, of what its rollouts are expected to hold.

All rollouts of an engine grow at the same pace, one token a decode step. After s more steps a rollout of length L is
still there with probability S(L + s) / S(L), and then holds L + s tokens. The forecast is the largest value over s
of mean + z standard deviations of the sum.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["forecast_peak"]


def forecast_peak(
    lengths: Sequence[float],
    limit: int,
    survival: Sequence[float],
    bucket_tokens: int,
    deviations: float,
    correlation: float = 0.0,
) -> float:
    """Tokens after the prompts that the rollouts will hold at most.

    Args:
        lengths: tokens after the prompt of each rollout now.
        limit: none grows beyond it, tokens.
        survival: see `LengthModel.survival`.
        bucket_tokens: resolution of ``survival`` and of the forecast, tokens.
        deviations: z, standard deviations above the mean.
        correlation: between the ends of any two rollouts, in [0, 1]; adds to the variance.
    """
    buckets = -(-limit // bucket_tokens) + 1
    counts = [0] * buckets
    sums = [0.0] * buckets
    for length in lengths:
        bucket = min(int(length // bucket_tokens), buckets - 1)
        counts[bucket] += 1
        sums[bucket] += length
    filled = [index for index in range(buckets) if counts[index]]
    last = len(survival) - 1
    table = [survival[min(index, last)] for index in range(buckets + 1)]
    peak = sum(sums)
    for ahead in range(1, buckets + 1 - filled[0] if filled else 0):
        grown = ahead * bucket_tokens
        mean = variance = spread = 0.0
        for index in filled:
            if index + ahead > buckets:
                break
            stays = table[index + ahead] / table[index] if table[index] > 0 else 0.0
            count = counts[index]
            each = min(sums[index] / count + grown, limit)
            mean += count * each * stays
            deviation = stays * (1.0 - stays)
            variance += count * each * each * deviation
            spread += count * each * math.sqrt(deviation)
        # Bounded correlation: part of every pair's product of deviations.
        variance += correlation * max(spread * spread - variance, 0.0)
        peak = max(peak, mean + deviations * math.sqrt(variance))
    return peak
