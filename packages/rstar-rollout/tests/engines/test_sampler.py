"""Inverse-CDF sampling against the distribution it is meant to follow."""

from __future__ import annotations

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rstar_rollout.engines.sampler import SamplingRows, sample

logit_rows = st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=600)


def rows(uniform: list[float], temperature: float = 1.0, top_p: float = 1.0, top_k: int = 0) -> SamplingRows:
    count = len(uniform)
    return SamplingRows([temperature] * count, [top_p] * count, [top_k] * count, uniform)


def test_each_token_owns_its_share_of_the_unit_interval():
    logits = torch.linspace(-2, 2, 300)
    points = [(index + 0.5) / 20_000 for index in range(20_000)]
    ids, _ = sample(logits.expand(len(points), -1), rows(points))
    share = torch.bincount(torch.tensor(ids), minlength=300) / len(points)
    assert torch.allclose(share, logits.softmax(0), atol=1.5 / 20_000)


@given(logit_rows, st.floats(1e-9, 1 - 1e-9), st.floats(0.1, 3.0))
@settings(deadline=None)
def test_log_prob_is_the_log_softmax_at_the_temperature(values, uniform, temperature):
    logits = torch.tensor([values])
    (token,), (log_prob,) = sample(logits, rows([uniform], temperature))
    expected = (logits[0].double() / temperature).log_softmax(0)[token]
    assert 0 <= token < len(values)
    assert math.isclose(log_prob, float(expected), rel_tol=1e-4, abs_tol=1e-4)


@given(logit_rows, st.floats(1e-9, 1 - 1e-9), st.integers(1, 5))
@settings(deadline=None)
def test_top_k_never_leaves_the_k_most_probable(values, uniform, k):
    (token,), (log_prob,) = sample(torch.tensor([values]), rows([uniform], top_k=k))
    assert sum(value > values[token] for value in values) < k
    assert log_prob <= 1e-6


@given(logit_rows, st.floats(1e-9, 1 - 1e-9), st.floats(0.05, 0.95))
@settings(deadline=None)
def test_top_p_never_leaves_the_nucleus(values, uniform, top_p):
    logits = torch.tensor([values])
    (token,), _ = sample(logits, rows([uniform], top_p=top_p))
    probabilities = logits[0].softmax(0)
    before = probabilities[probabilities > probabilities[token]].sum()
    assert before < top_p + 1e-4


@given(logit_rows, st.floats(1e-9, 1 - 1e-9))
@settings(deadline=None)
def test_temperature_zero_takes_a_largest_logit(values, uniform):
    (token,), _ = sample(torch.tensor([values]), rows([uniform], temperature=0.0))
    assert values[token] == max(values)


def test_a_token_without_probability_is_never_drawn():
    logits = torch.full((1, 700), float("-inf"))
    logits[0, 511] = 0.0
    for uniform in (1e-12, 0.5, 1 - 2**-53):
        assert sample(logits, rows([uniform])) == ([511], [0.0])


def test_rows_keep_their_own_settings():
    logits = torch.tensor([[0.0, 1.0, 2.0]] * 3)
    mixed = SamplingRows([0.0, 1.0, 1.0], [1.0, 1.0, 1.0], [0, 1, 0], [0.01, 0.01, 0.01])
    assert sample(logits, mixed)[0] == [2, 2, 0]
