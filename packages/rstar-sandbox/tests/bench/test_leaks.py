"""A service does not grow."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rstar_sandbox.bench.leaks import Growth, Holding, measure_growth

HOLDING = Holding(processes=9, descriptors=90, mounts=40, control_groups=4, folders=3, memory_bytes=100 << 20)


@pytest.mark.timeout(600)
def test_many_calls_leave_nothing_behind() -> None:
    done = 0

    def count(more: int) -> None:
        nonlocal done
        done += more

    found = measure_growth(600, on_done=count)
    assert done == 600
    assert max(found.grew.values()) <= 0, found
    assert found.is_flat, found


@pytest.mark.parametrize("name", ["processes", "descriptors", "mounts", "control_groups", "folders"])
def test_one_thing_left_behind_is_growth(name: str) -> None:
    assert not Growth(10, HOLDING, replace(HOLDING, **{name: getattr(HOLDING, name) + 1})).is_flat
    assert Growth(10, HOLDING, HOLDING).is_flat


def test_memory_may_move_and_not_grow() -> None:
    assert Growth(10, HOLDING, replace(HOLDING, memory_bytes=110 << 20)).is_flat
    assert not Growth(10, HOLDING, replace(HOLDING, memory_bytes=200 << 20)).is_flat
