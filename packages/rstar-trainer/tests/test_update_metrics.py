"""Sums that ranks add up, and the means made of them."""

from __future__ import annotations

import math

from rstar_trainer.update_metrics import LossSums, UpdateMetrics


def test_sums_of_ranks_add_up_as_vectors() -> None:
    first, second = LossSums(loss=1.0, tokens=3.0, kl=0.5), LossSums(loss=2.0, tokens=4.0, policy_tokens=2.0)
    added = LossSums.from_vector([a + b for a, b in zip(first.to_vector(), second.to_vector(), strict=True)])
    first.add(second)
    assert added == first == LossSums(loss=3.0, tokens=7.0, kl=0.5, policy_tokens=2.0)


def test_means_are_over_policy_tokens_and_mismatch_over_known_ones() -> None:
    sums = LossSums(loss=2.0, ratio=8.0, clipped_low=2.0, kl=4.0, mismatch=3.0, mismatch_tokens=2.0, policy_tokens=8.0)
    metrics = UpdateMetrics.of_policy(sums, updates=2, groups=4, grad_norm=1.0, seconds=1.0)
    assert (metrics.loss, metrics.ratio, metrics.clip_low_share, metrics.kl) == (1.0, 1.0, 0.25, 0.5)
    assert (metrics.mismatch, metrics.policy_tokens_per_group) == (1.5, 2.0)


def test_nothing_known_of_the_engine_is_nan_rather_than_zero() -> None:
    metrics = UpdateMetrics.of_policy(LossSums(policy_tokens=3.0), updates=1, groups=1, grad_norm=0.0, seconds=1.0)
    assert math.isnan(metrics.mismatch)
    assert math.isnan(metrics.mismatch_kl)
