"""The report of a small measurement of the real service, and the measurement itself."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from rstar_protos.errors import UserInputError
from rstar_sandbox.bench import report
from rstar_sandbox.bench.rates import Plan, measure_rates
from rstar_sandbox.bench.targets import Service, parse_other

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def measured() -> dict[str, Any]:
    plan = Plan(concurrencies=(1, 3), tiers=("standard",), rounds=2, seconds=0.3)
    service = Service(options=("--warm", "", "--slots", "2"))
    return asyncio.run(measure_rates(plan, service, [], lambda _: None))


def test_every_target_is_measured_at_every_concurrency(measured: dict[str, Any]) -> None:
    targets = ("service", "service, one stream", "cold python -I")
    assert {(row["target"], row["concurrency"]) for row in measured["rows"]} == {
        (target, concurrency) for target in targets for concurrency in (1, 3)
    }


def test_every_answer_was_the_programs_own(measured: dict[str, Any]) -> None:
    assert [row["wrong"] for row in measured["rows"]] == [0] * 6
    assert all(row["calls"] > 0 for row in measured["rows"])


def test_cpu_time_is_that_of_client_front_and_what_is_below(measured: dict[str, Any]) -> None:
    for row in measured["rows"]:
        cpu = row["cpu_ms_per_call"]
        parts = [cpu[part]["mean"] for part in ("client", "front", "below") if part in cpu]
        assert cpu["all"]["mean"] == pytest.approx(sum(parts))
        assert ("front" in cpu) == row["target"].startswith("service")


def test_phases_of_a_call_are_told(measured: dict[str, Any]) -> None:
    row = next(row for row in measured["rows"] if row["target"] == "service")
    assert set(row["phase_cpu_ms_per_call"]) == {"fork", "exec", "drain", "reap"}


def test_the_text_has_table_comparisons_and_projection(measured: dict[str, Any]) -> None:
    text = report.text(measured)
    assert "cold python -I" in text
    assert "45000 calls" in text
    assert "on 64 cores" in text


def test_json_has_no_numbers_that_json_has_not(measured: dict[str, Any], tmp_path: Path) -> None:
    report.write_json({**measured, "odd": float("nan")}, tmp_path / "report.json")
    read = json.loads((tmp_path / "report.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    assert read["odd"] is None
    assert len(read["rows"]) == len(measured["rows"])


@pytest.mark.parametrize("plan", [Plan(rounds=0), Plan(seconds=0), Plan(concurrencies=()), Plan(tiers=("gpu",))])
def test_a_plan_that_cannot_be_run_is_refused(plan: Plan) -> None:
    with pytest.raises(UserInputError):
        plan.checked()


@pytest.mark.parametrize("text", ["", "code-judge", "code-judge=host", "other=http://host", "=http://host"])
def test_another_server_that_cannot_be_named_is_refused(text: str) -> None:
    with pytest.raises(UserInputError, match="--against"):
        parse_other(text, None)
