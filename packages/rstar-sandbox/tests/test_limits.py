"""Limits and settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar_protos.errors import UserInputError
from rstar_protos.sandbox.v1 import sandbox_pb2
from rstar_sandbox.conversion import job_from_proto, limits_from_proto, limits_to_proto
from rstar_sandbox.limits import DEFAULT_LIMITS, Limits
from rstar_sandbox.settings import SandboxSettings

_NUMBERS = st.floats(0, 1e6)
_LIMITS = st.builds(
    Limits,
    wall_seconds=_NUMBERS,
    cpu_seconds=_NUMBERS,
    memory_bytes=st.integers(0, 2**40),
    max_stdout_bytes=st.integers(0, 2**40),
)


@given(_LIMITS)
def test_limits_survive_the_contract(limits: Limits) -> None:
    assert limits_from_proto(limits_to_proto(limits)) == limits


@given(_LIMITS)
def test_merged_limits_are_the_asked_ones_where_given_and_allowed(limits: Limits) -> None:
    ceiling = SandboxSettings().ceiling
    merged = limits.over(DEFAULT_LIMITS, ceiling)
    assert 0 < merged.wall_seconds <= ceiling.wall_seconds
    assert merged.memory_bytes == min(limits.memory_bytes or DEFAULT_LIMITS.memory_bytes, ceiling.memory_bytes)


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_numbers_that_are_no_limits_are_refused_by_name(value: float) -> None:
    with pytest.raises(UserInputError, match="wall_seconds"):
        Limits(wall_seconds=value).checked()


def test_asking_for_more_time_alone_means_cpu_time_too() -> None:
    request = sandbox_pb2.ExecuteRequest(limits=sandbox_pb2.Limits(wall_seconds=100))
    assert job_from_proto(request, SandboxSettings()).limits.cpu_seconds == 100


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"slots": 0}, "--slots"),
        ({"max_sessions": -1}, "--max-sessions"),
        ({"folder": Path("/no/such/folder")}, "--work-dir"),
    ],
)
def test_unusable_settings_are_refused_by_name(changes: dict[str, object], named: str) -> None:
    with pytest.raises(UserInputError, match=named):
        replace(SandboxSettings(), **changes).checked()  # type: ignore[arg-type]
