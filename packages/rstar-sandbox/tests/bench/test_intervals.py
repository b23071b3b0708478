"""Means, intervals and quantiles."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar_sandbox.bench.intervals import Mean, quantile


def test_an_interval_is_students_t() -> None:
    mean = Mean.of([10.0, 12.0, 14.0])
    assert mean.value == 12.0
    assert mean.half_width == pytest.approx(4.303 * 2.0 / math.sqrt(3))


def test_one_round_has_no_interval_and_none_has_no_mean() -> None:
    assert math.isnan(Mean.of([3.0]).half_width)
    assert math.isnan(Mean.of([]).value)


def test_a_mean_is_shown_with_as_many_digits_as_it_has_meaning() -> None:
    assert [str(Mean(value, 1.234)) for value in (1.0, 12.0, 123.0)] == ["1.00 ±1.23", "12.0 ±1.2", "123 ±1"]


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50), st.floats(0.01, 1.0))
def test_a_quantile_is_a_value_that_its_share_does_not_exceed(values: list[float], share: float) -> None:
    found = quantile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-9
    smaller = [value for value in values if value < found]
    assert len(smaller) < share * len(values) + 1e-9


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=40))
def test_the_mean_lies_within_its_interval(values: list[float]) -> None:
    mean = Mean.of(values)
    assert mean.value == pytest.approx(statistics.fmean(values))
    assert mean.half_width >= 0
