"""What is learned of lengths, the forecast built on it, and the order of groups."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar_rollout.scheduler.forecast import forecast_peak
from rstar_rollout.scheduler.lengths import LengthModel
from rstar_rollout.scheduler.load import EngineCapacity, RolloutSpec
from rstar_rollout.scheduler.longest_first import LongestFirst
from rstar_rollout.scheduler.scheduler import RolloutScheduler


def test_without_data_every_length_is_expected_to_be_reached():
    model = LengthModel()
    model.refresh((), force=True)
    assert set(model.survival) == {1.0}
    assert forecast_peak([0.0, 100.0], 1000, model.survival, 256, 3.0) == pytest.approx(2000, rel=0.2)


def test_running_rollouts_keep_short_finishers_from_misleading():
    """Of 1,000 rollouts the 50 shortest have ended, the others are past them: most will become longer."""
    model = LengthModel(bucket_tokens=10)
    for _ in range(50):
        model.add(5, 1000)
    model.refresh([50.0] * 950, force=True)
    assert model.survival[-1] > 0.94


def test_survival_matches_the_lengths_seen():
    rng = random.Random(3)
    model = LengthModel(bucket_tokens=100)
    for _ in range(20_000):
        model.add(int(rng.expovariate(1 / 500)), 100_000)
    model.refresh((), force=True)
    assert model.survival[5] == pytest.approx(0.3679, abs=0.02)
    assert model.survival[10] == pytest.approx(0.1353, abs=0.02)


def test_a_rollout_cut_at_its_limit_counts_as_one_that_came_that_far():
    model = LengthModel(bucket_tokens=10)
    for _ in range(100):
        model.add(50, 50)
    model.refresh((), force=True)
    assert set(model.survival) == {1.0}


@given(st.lists(st.floats(0, 999), max_size=30), st.integers(1, 999), st.floats(0, 4))
def test_forecast_lies_between_what_is_held_and_the_worst_case(lengths: list[float], end: int, deviations: float):
    model = LengthModel(bucket_tokens=50)
    for length in range(end):
        model.add(length, 1000)
    model.refresh((), force=True)
    peak = forecast_peak(lengths, 1000, model.survival, 50, deviations)
    assert sum(lengths) <= peak + 1e-6
    if deviations == 0:
        assert peak <= 1000 * len(lengths) + 1e-6


def test_forecast_of_known_lengths_is_exact():
    """All rollouts end at 500 tokens: two that began together peak at 1,000."""
    model = LengthModel(bucket_tokens=100)
    for _ in range(100_000):
        model.add(499, 1000)
    model.refresh((), force=True)
    assert forecast_peak([0.0, 0.0], 1000, model.survival, 100, 0.0) == pytest.approx(800, rel=0.01)


def test_older_steps_fade():
    model = LengthModel(bucket_tokens=10, decay=0.5)
    for _ in range(8):
        model.add(5, 100)
    model.next_step()
    assert model.samples == 4


def test_learned_admission_takes_more_than_the_worst_case_once_lengths_are_known():
    model = LengthModel(bucket_tokens=16)
    for _ in range(2000):
        model.add(40, 800)
    model.refresh((), force=True)
    engines = [EngineCapacity("a", 200, 10, 1000)]
    specs = [RolloutSpec(str(index), str(index), 10, 800) for index in range(100)]
    known, unknown = RolloutScheduler(LongestFirst(model), engines), RolloutScheduler(LongestFirst(), engines)
    for scheduler in (known, unknown):
        scheduler.submit(specs)
    assert len(unknown.place()) == 2
    assert len(known.place()) > 10


def test_groups_that_turn_out_long_go_first():
    scheduler = RolloutScheduler(LongestFirst(probes=16), [EngineCapacity("a", 100_000, 10, 32)])
    scheduler.submit([RolloutSpec(f"{g}/{i}", g, 10, 1000) for g in ("short", "long") for i in range(40)])
    placed = [rollout for rollout, _ in scheduler.place()]
    assert placed == [f"{g}/{i}" for g in ("short", "long") for i in range(16)]
    for rollout in placed:
        scheduler.finish(rollout, 10 if rollout.startswith("short") else 900)
    following = [rollout for rollout, _ in scheduler.place()]
    assert following == [f"long/{i}" for i in range(16, 40)] + [f"short/{i}" for i in range(16, 24)]


def test_the_engine_of_which_least_is_expected_gets_the_next_rollout():
    engines = [EngineCapacity(name, 100_000, 10, 100) for name in ("a", "b")]
    scheduler = RolloutScheduler(LongestFirst(probes=1), engines)
    scheduler.submit([RolloutSpec(f"{g}/0", g, 10, 1000) for g in "wxyz"])
    placed = dict(scheduler.place())
    assert sorted(placed.values()) == ["a", "a", "b", "b"]
