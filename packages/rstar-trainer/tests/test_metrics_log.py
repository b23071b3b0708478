"""The log holds every record once, whatever crashes, and hands records to followers."""

import asyncio
import json
import math
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar_trainer.metrics_log import METRICS_FILE, TENSORBOARD_FOLDER, MetricsLog, Record, read_records


def open_log(folder: Path) -> MetricsLog:
    return MetricsLog(folder, tensorboard=False)


def steps(folder: Path) -> list[int]:
    return [record.global_step for record in read_records(folder)]


@given(
    st.builds(
        Record,
        global_step=st.integers(0, 10**9),
        stage=st.text(),
        kind=st.sampled_from(["sft", "rl", "evaluation", "event"]),
        values=st.dictionaries(st.text(), st.floats(allow_nan=False, allow_infinity=False)),
        text=st.text(),
        time=st.integers(0, 2**40).map(float),
    )
)
def test_a_record_is_one_line_of_json_and_comes_back(record: Record) -> None:
    line = record.to_json()
    assert "\n" not in line
    assert Record.from_json(line) == record


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_numbers_that_json_cannot_hold_are_null(value: float) -> None:
    line = Record(1, "rl-1", "rl", {"loss": value}).to_json()
    assert json.loads(line)["values"] == {"loss": None}
    assert math.isnan(Record.from_json(line).values["loss"])


def test_a_record_is_in_the_file_when_log_returns(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.log("rl", global_step=1, stage="rl-1", values={"reward": 0.5})
        assert read_records(tmp_path)[0].values == {"reward": 0.5}


def test_reopening_goes_on(tmp_path: Path) -> None:
    for step in (1, 2):
        with open_log(tmp_path) as log:
            log.log("rl", global_step=step, stage="rl-1")
    assert steps(tmp_path) == [1, 2]


@pytest.mark.parametrize("tail", [b'{"global_step": 2, "st', b"\xc3", b"{}"])
def test_a_record_cut_by_a_crash_is_dropped(tmp_path: Path, tail: bytes) -> None:
    with open_log(tmp_path) as log:
        log.log("rl", global_step=1, stage="rl-1")
    with (tmp_path / METRICS_FILE).open("ab") as file:
        file.write(tail)
    with open_log(tmp_path) as log:
        log.log("rl", global_step=2, stage="rl-1")
    assert steps(tmp_path) == [1, 2]


def test_truncation_removes_later_steps_from_file_and_memory(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        for step in range(1, 6):
            log.log("rl", global_step=step, stage="rl-1")
        log.truncate(3)
        assert [record.global_step for record in log.records] == steps(tmp_path) == [1, 2, 3]
        log.log("rl", global_step=4, stage="rl-1")
    assert steps(tmp_path) == [1, 2, 3, 4]


def test_truncation_to_a_position_removes_later_records_of_the_same_step(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.log("rl", global_step=1, stage="rl-1")
        position = log.position
        log.log("evaluation", global_step=1, stage="rl-1")
    with open_log(tmp_path) as log:
        log.truncate(1, position)
    assert [record.kind for record in read_records(tmp_path)] == ["rl"]


async def test_a_stream_without_follow_ends(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        for step in (1, 2, 3):
            log.log("rl", global_step=step, stage="rl-1")
        assert [record.global_step async for record in log.stream(2)] == [2, 3]


async def test_a_follower_gets_every_record_once_until_the_log_closes(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.log("rl", global_step=1, stage="rl-1")
    seen: list[int] = []
    first = asyncio.Event()

    async def follow() -> None:
        async for record in log.stream(follow=True):
            seen.append(record.global_step)
            first.set()

    task = asyncio.create_task(follow())
    await first.wait()
    writer = threading.Thread(target=lambda: [log.log("rl", global_step=n, stage="rl-1") for n in range(2, 50)])
    writer.start()
    await asyncio.to_thread(writer.join)
    log.close()
    await task
    assert seen == list(range(1, 50))


async def test_following_a_closed_log_ends(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.log("rl", global_step=1, stage="rl-1")
    log.close()
    assert [record.global_step async for record in log.stream(follow=True)] == [1]


async def test_a_follower_that_leaves_is_forgotten(tmp_path: Path) -> None:
    with open_log(tmp_path) as log:
        log.log("rl", global_step=1, stage="rl-1")
        stream = log.stream(follow=True)
        await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]  # an async generator behind the iterator type
        assert log._subscribers == []


def test_tensorboard_shows_each_step_once_after_a_truncation(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    with MetricsLog(tmp_path) as log:
        for step in (1, 2, 3):
            log.log("rl", global_step=step, stage="rl-1", values={"reward": 0.0})
    with MetricsLog(tmp_path) as log:
        log.truncate(1)
        for step in (2, 3):
            log.log("rl", global_step=step, stage="rl-1", values={"reward": 1.0})
    events = accumulator.EventAccumulator(str(tmp_path / TENSORBOARD_FOLDER))
    events.Reload()
    found = sorted((event.step, event.value) for event in events.Scalars("rl/reward"))
    assert found == [(1, 0.0), (2, 1.0), (3, 1.0)]
