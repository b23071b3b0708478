"""pass@1 and its intervals."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar_eval.statistics import cluster_bootstrap_interval, pass_at_1, share, wilson_interval

outcomes = st.lists(st.lists(st.booleans(), max_size=6), max_size=25)


@given(outcomes)
def test_interval_holds_the_mean_and_stays_in_the_unit_interval(successes):
    estimate = pass_at_1(successes, resamples=50)
    if any(successes):
        assert 0 <= estimate.low <= estimate.mean <= estimate.high <= 1
    else:
        assert (estimate.mean, estimate.low, estimate.high) == (None, None, None)


@given(outcomes.filter(any), st.integers(1, 5))
def test_mean_does_not_move_when_every_sample_is_repeated(successes, times):
    repeated = [problem * times for problem in successes]
    assert pass_at_1(repeated, resamples=1).mean == pytest.approx(pass_at_1(successes, resamples=1).mean)


@given(outcomes)
def test_problems_without_samples_are_left_out(successes):
    present = [problem for problem in successes if problem]
    assert pass_at_1([*successes, []], resamples=20) == pass_at_1(present, resamples=20)


@given(st.lists(st.booleans(), min_size=1, max_size=40))
def test_one_sample_per_problem_uses_wilson(flags):
    estimate = pass_at_1([[flag] for flag in flags])
    assert estimate.method == "wilson"
    assert (estimate.low, estimate.high) == wilson_interval(sum(flags), len(flags))


def test_each_problem_is_divided_by_the_samples_it_has():
    assert pass_at_1([[True, False], [True]]).mean == 0.75


@pytest.mark.parametrize(
    ("successes", "total", "low", "high"),
    # R. G. Newcombe, Statistics in Medicine 17 (1998), table I, method 3.
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_against_published_values(successes, total, low, high):
    assert wilson_interval(successes, total) == pytest.approx((low, high), abs=5e-5)


def test_wilson_is_never_without_width():
    for total in (1, 16, 128):
        for successes in (0, total):
            low, high = wilson_interval(successes, total)
            assert high - low > 1 / (total + 10)


@pytest.mark.parametrize("right", [True, False])
def test_equal_rates_are_not_reported_as_certain(right):
    estimate = pass_at_1([[right] * 8] * 16)
    assert estimate.method == "wilson"
    assert estimate.high - estimate.low > 0.1


def test_samples_of_one_problem_are_not_counted_as_independent():
    clustered = [[True] * 16] * 20 + [[False] * 16] * 20
    low, high = wilson_interval(20 * 16, 40 * 16)
    estimate = pass_at_1(clustered)
    assert estimate.high - estimate.low > 3 * (high - low)


def test_bootstrap_repeats_with_its_seed_and_moves_with_another():
    rates = [random.Random(i).random() for i in range(40)]
    first = cluster_bootstrap_interval(rates, seed=1, resamples=500)
    assert first == cluster_bootstrap_interval(rates, seed=1, resamples=500)
    assert first != cluster_bootstrap_interval(rates, seed=2, resamples=500)


def test_bootstrap_blocks_do_not_change_the_result(monkeypatch):
    rates = [0.0, 0.25, 0.5, 1.0] * 5
    whole = cluster_bootstrap_interval(rates, resamples=400)
    monkeypatch.setattr("rstar_eval.statistics._BLOCK_DRAWS", 100)
    assert cluster_bootstrap_interval(rates, resamples=400) == whole


@pytest.mark.parametrize("samples", [1, 4])
def test_nominal_coverage_is_reached(samples):
    draw = random.Random(7)
    covered = 0
    for _ in range(200):
        # Success rates of problems are uniform, so the true pass@1 is 0.5.
        problems = [draw.random() for _ in range(60)]
        successes = [[draw.random() < rate for _ in range(samples)] for rate in problems]
        estimate = pass_at_1(successes, resamples=400)
        covered += estimate.low <= 0.5 <= estimate.high
    assert 0.89 <= covered / 200 <= 0.995


def test_share_of_nothing_is_unknown():
    assert share(0, 0) is None
    assert share(1, 4) == 0.25


@pytest.mark.parametrize("confidence", [0.0, 1.0, -1.0, 2.0])
def test_confidence_out_of_range_is_refused(confidence):
    with pytest.raises(ValueError, match="confidence"):
        pass_at_1([[True]], confidence=confidence)


@pytest.mark.parametrize(("successes", "total"), [(-1, 5), (6, 5), (0, 0)])
def test_impossible_counts_are_refused(successes, total):
    with pytest.raises(ValueError, match="count"):
        wilson_interval(successes, total)
