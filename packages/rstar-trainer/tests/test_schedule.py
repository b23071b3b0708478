"""Learning-rate schedules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar_trainer.schedule import supervised_learning_rate, warmup_learning_rate


@given(st.integers(0, 500), st.integers(0, 50))
def test_warmup_rises_to_the_peak_and_stays(step: int, warmup: int) -> None:
    rate = warmup_learning_rate(step, 1e-6, warmup)
    assert 0 < rate <= 1e-6
    assert (rate == 1e-6) == (step >= warmup)


@given(st.integers(1, 500), st.floats(0, 0.9), st.sampled_from(["cosine", "constant"]))
def test_every_supervised_step_moves_and_none_exceeds_the_peak(total: int, fraction: float, schedule: str) -> None:
    rates = [supervised_learning_rate(s, total, 5e-6, fraction, schedule) for s in range(total)]  # type: ignore[arg-type]
    assert all(0 < rate <= 5e-6 for rate in rates)


def test_cosine_falls_after_the_warmup() -> None:
    rates = [supervised_learning_rate(step, 100, 1.0, 0.04, "cosine") for step in range(100)]
    assert rates[:4] == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert rates[4:] == sorted(rates[4:], reverse=True)
    assert rates[4] == 1.0
    assert rates[-1] < 0.001
