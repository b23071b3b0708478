"""Processes that die in the middle of work, below a real dispatcher."""

from __future__ import annotations

import pytest

from rstar_sandbox.bench.deaths import Deaths, measure_deaths

pytestmark = pytest.mark.timeout(900)


@pytest.mark.heavy
async def test_every_call_gets_its_own_answer_once_whatever_dies() -> None:
    found = await measure_deaths(1200, options=("--warm", "", "--slots", "2"))
    assert found.answers == 1200
    assert (found.foreign, found.twice) == (0, 0)
    assert found.statuses == {"ok": 1200}
    assert sum(found.killed.values()) >= 2


@pytest.mark.parametrize(
    "changes", [{"answers": 9}, {"foreign": 1}, {"twice": 1}, {"statuses": {"ok": 9, "unavailable": 1}}]
)
def test_what_went_wrong_does_not_pass(changes: dict[str, object]) -> None:
    good: dict[str, object] = {"calls": 10, "answers": 10, "statuses": {"ok": 10}}
    assert Deaths(**good).passed  # type: ignore[arg-type]  # fields by name, as a report is read back
    assert not Deaths(**{**good, **changes}).passed  # type: ignore[arg-type]  # likewise
