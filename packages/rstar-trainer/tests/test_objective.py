"""The objective against its formulas."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rstar_trainer.objective import (
    clipped_policy_loss,
    engine_mismatch,
    group_advantages,
    sequence_token_weights,
    truncated_engine_weights,
)

REWARDS = st.lists(st.sampled_from([0.0, 1.0]), min_size=0, max_size=40)


@given(REWARDS)
def test_std_advantages_have_mean_zero_and_unit_scale(rewards: list[float]) -> None:
    advantages = group_advantages(rewards)
    assert len(advantages) == len(rewards)
    assert all(math.isfinite(value) for value in advantages)
    if len(set(rewards)) > 1:
        assert math.fsum(advantages) == pytest.approx(0, abs=1e-9)
        assert math.fsum(value * value for value in advantages) / len(rewards) == pytest.approx(1)


@given(st.integers(1, 40), st.sampled_from([0.0, 0.1, 1.0]), st.sampled_from(["std", "mean"]))
def test_equal_rewards_and_single_rollouts_have_no_advantage(count: int, reward: float, kind: str) -> None:
    assert group_advantages([reward] * count, kind) == [0.0] * count  # type: ignore[arg-type]


def test_advantages_of_one_correct_in_four() -> None:
    assert group_advantages([1, 0, 0, 0]) == pytest.approx([math.sqrt(3)] + [-1 / math.sqrt(3)] * 3)
    assert group_advantages([1, 0, 0, 0], "mean") == pytest.approx([0.75, -0.25, -0.25, -0.25])


def test_a_missing_reward_must_be_left_out_rather_than_passed_as_nan() -> None:
    with pytest.raises(ValueError, match="finite"):
        group_advantages([1.0, math.nan])


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5)), min_size=1, max_size=30),
    st.sampled_from(["group_token_mean", "batch_token_mean", "sequence_mean"]),
)
def test_token_weights_sum_to_one(sequences: list[tuple[int, int]], aggregation: str) -> None:
    counts, groups = [c for c, _ in sequences], [g for _, g in sequences]
    weights = sequence_token_weights(counts, groups, aggregation)  # type: ignore[arg-type]
    total = math.fsum(count * weight for count, weight in zip(counts, weights, strict=True))
    assert total == pytest.approx(1 if sum(counts) else 0)


def test_group_token_mean_gives_each_group_the_same_say() -> None:
    weights = sequence_token_weights([10, 30, 5], [0, 0, 1], "group_token_mean")
    assert weights == pytest.approx([1 / 80, 1 / 80, 1 / 10])
    assert sequence_token_weights([10, 30, 5], [0, 0, 1], "batch_token_mean") == pytest.approx([1 / 45] * 3)


def test_sequence_mean_gives_each_rollout_the_same_say() -> None:
    assert sequence_token_weights([10, 30, 0, 5], [0, 0, 0, 1], "sequence_mean") == pytest.approx(
        [1 / 30, 1 / 90, 0.0, 1 / 15]
    )


def test_dr_grpo_divides_by_a_constant_whatever_the_lengths() -> None:
    assert sequence_token_weights([10, 30], [0, 1], "dr_grpo", 100) == pytest.approx([1 / 200, 1 / 200])


@pytest.mark.parametrize("constant", [None, 0, -3])
def test_dr_grpo_needs_its_constant(constant: int | None) -> None:
    with pytest.raises(ValueError, match="constant number of tokens"):
        sequence_token_weights([10], [0], "dr_grpo", constant)


def test_engine_weights_are_truncated_ratios_without_gradient() -> None:
    old = torch.tensor([-1.0, -1.0, -1.0, -1.0], dtype=torch.float64, requires_grad=True)
    engine = torch.tensor([-1.0, -1.5, -4.0, math.nan])
    weights = truncated_engine_weights(old, engine, cap=2.0)
    assert weights.tolist() == pytest.approx([1.0, math.exp(0.5), 2.0, 1.0])
    assert not weights.requires_grad


def test_engine_weights_scale_each_tokens_term() -> None:
    new = torch.zeros(2, requires_grad=True)
    result = clipped_policy_loss(
        new, torch.zeros(2), torch.ones(2), torch.ones(2), engine_weights=torch.tensor([0.5, 2.0])
    )
    result.loss.backward()  # type: ignore[no-untyped-call]
    assert new.grad is not None
    assert new.grad.tolist() == [-0.5, -2.0]


def test_tokens_of_an_earlier_policy_give_the_gradient_of_the_present_one() -> None:
    """The mean over all tokens, drawn by the earlier policy and weighted, is that of tokens that the present one draws.

    So the recorded log-probabilities are what makes a rollout that went on under other weights fit to train on.
    """
    logits = torch.tensor([0.3, -1.0, 0.8], dtype=torch.float64, requires_grad=True)
    earlier = torch.log_softmax(torch.tensor([1.0, 0.5, -0.5], dtype=torch.float64), 0)
    rewards = torch.tensor([1.0, -0.5, 2.0], dtype=torch.float64)

    def gradient(drawn_by: torch.Tensor) -> list[float]:
        present = torch.log_softmax(logits, 0)
        old = present.detach()
        weights = truncated_engine_weights(old, drawn_by, cap=100.0)
        loss = clipped_policy_loss(present, old, rewards, drawn_by.exp(), engine_weights=weights).loss
        (found,) = torch.autograd.grad(loss, logits)
        values: list[float] = found.tolist()
        return values

    assert gradient(earlier) == pytest.approx(gradient(torch.log_softmax(logits.detach(), 0)))


def test_mismatch_counts_known_tokens_only_and_its_kl_is_never_negative() -> None:
    found = engine_mismatch(torch.tensor([-1.0, -2.0, -3.0]), torch.tensor([-1.5, math.nan, -2.0]))
    assert int(found.tokens) == 2
    assert float(found.absolute_sum) == pytest.approx(1.5)
    assert float(found.kl_sum) == pytest.approx((math.exp(0.5) - 1.5) + (math.exp(-1.0) - 0.0))


def _loss(ratio: float, advantage: float) -> tuple[float, float, int, int]:
    old = torch.zeros(1)
    new = torch.full((1,), math.log(ratio), requires_grad=True)
    result = clipped_policy_loss(new, old, torch.tensor([advantage]), torch.ones(1))
    result.loss.backward()  # type: ignore[no-untyped-call]
    assert new.grad is not None
    return float(result.loss.detach()), float(new.grad), int(result.clipped_low), int(result.clipped_high)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient", "low", "high"),
    [
        (1.0, 1.0, -1.0, -1.0, 0, 0),
        (1.2, 1.0, -1.2, -1.2, 0, 0),
        (1.5, 1.0, -1.28, 0.0, 0, 1),
        (0.5, 1.0, -0.5, -0.5, 0, 0),
        (0.5, -1.0, 0.8, 0.0, 1, 0),
        (1.5, -1.0, 1.5, 1.5, 0, 0),
    ],
)
def test_clipping_stops_gradients_only_where_the_paper_says(
    ratio: float, advantage: float, loss: float, gradient: float, low: int, high: int
) -> None:
    found = _loss(ratio, advantage)
    assert found == pytest.approx((loss, gradient, low, high), abs=1e-6)
