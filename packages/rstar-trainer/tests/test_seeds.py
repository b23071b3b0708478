"""Derived seeds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rstar_trainer.seeds import derive_seed


def test_a_seed_is_the_same_in_every_process() -> None:
    assert derive_seed(1, "rollout", "rl-1", 0) == 5130077162286628114


@given(st.integers(0, 2**62), st.lists(st.text() | st.integers(), max_size=4))
def test_seeds_fit_the_wire(seed: int, purpose: list[str | int]) -> None:
    assert 0 <= derive_seed(seed, *purpose) < 2**63


def test_purposes_do_not_collide() -> None:
    seeds = {derive_seed(seed, stage, step) for seed in range(5) for stage in ("rl-1", "rl-11") for step in range(50)}
    assert len(seeds) == 500
