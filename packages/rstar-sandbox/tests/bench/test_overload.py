"""Ten times too many calls, against the real service."""

from __future__ import annotations

import pytest

from rstar_sandbox.bench.overload import Overload, measure_overload
from rstar_sandbox.bench.targets import Service

pytestmark = pytest.mark.timeout(600)


@pytest.mark.heavy
async def test_overload_makes_no_false_timeout_and_every_refusal_says_when_to_come_back() -> None:
    service = Service(options=("--warm", "", "--slots", "2"))
    async with service.opened():
        found = await measure_overload(service, 5.0)
    assert set(found.statuses) == {"ok"}
    assert found.refused > 0
    assert found.refused_without_hint == 0
    assert found.recovery_seconds < 60


@pytest.mark.parametrize(
    "changes",
    [
        {"statuses": {"ok": 5, "timeout": 1}},
        {"statuses": {"ok": 5, "CANCELLED": 1}},
        {"refused": 0},
        {"refused_without_hint": 1},
        {"recovery_seconds": 2.1},
    ],
)
def test_what_went_wrong_does_not_pass(changes: dict[str, object]) -> None:
    good: dict[str, object] = {"statuses": {"ok": 5}, "refused": 3, "recovery_seconds": 0.4}
    assert Overload(**good).passed  # type: ignore[arg-type]  # fields by name, as a report is read back
    assert not Overload(**{**good, **changes}).passed  # type: ignore[arg-type]  # likewise
