"""Noise is a function of its key and nothing else."""

from __future__ import annotations

import itertools
import statistics

from hypothesis import given
from hypothesis import strategies as st

from rstar_rollout.engines.base import NoiseKey
from rstar_rollout.engines.noise import TurnNoise, turn_seed

keys = st.builds(NoiseKey, st.integers(0, 2**64 - 1), st.text(max_size=20), st.integers(0, 1000), st.integers(0, 30))


@given(keys, st.integers(0, 2**32))
def test_same_key_same_number_inside_the_open_interval(key, position):
    value = TurnNoise(key).uniform(position)
    assert 0 < value < 1
    assert TurnNoise(key).uniform(position) == value


def test_every_part_of_the_key_matters():
    numbers = [
        TurnNoise(NoiseKey(seed, problem, sample, turn)).uniform(position)
        for seed, problem, sample, turn, position in itertools.product((0, 1), "ab", (0, 1), (0, 1), (0, 1))
    ]
    assert len(set(numbers)) == 32
    seeds = {turn_seed(NoiseKey(s, p, i, t)) for s, p, i, t in itertools.product((0, 1), "ab", (0, 1), (0, 1))}
    assert len(seeds) == 16


def test_numbers_are_spread_evenly():
    noise = TurnNoise(NoiseKey(0, "p", 0, 0))
    values = [noise.uniform(position) for position in range(5000)]
    assert abs(statistics.mean(values) - 0.5) < 0.02
    assert abs(statistics.pvariance(values) - 1 / 12) < 0.005
