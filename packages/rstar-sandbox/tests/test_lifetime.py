"""Deaths: of a slot, of the zygote, of the service. Nothing is answered twice, nothing survives."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rstar_protos.service import EmbeddedService
from rstar_sandbox import Sandbox, SandboxClient
from rstar_sandbox.attacks import admit
from rstar_sandbox.executor import IsolationError
from rstar_sandbox.hot import EXTENSION
from rstar_sandbox.isolation import Plan
from rstar_sandbox.limits import DEFAULT_LIMITS
from rstar_sandbox.messages import Job
from rstar_sandbox.pool import WorkerPool
from rstar_sandbox.session_table import SessionLostError, SessionTable
from rstar_sandbox.settings import SandboxSettings
from rstar_sandbox.template import Template

pytestmark = pytest.mark.timeout(180)

Until = Callable[[Callable[[], Any]], Awaitable[None]]
_SLOTS = 3


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[WorkerPool]:
    async with _running(tmp_path / "folder", _SLOTS) as pool:
        yield pool


@contextlib.asynccontextmanager
async def _running(folder: Path, slots: int) -> AsyncIterator[WorkerPool]:
    await asyncio.to_thread(folder.mkdir)
    pool = WorkerPool(SandboxSettings(slots=slots, warm=(), folder=folder))
    pool.start()
    await pool.ready()
    yield pool
    await pool.stop()
    assert os.listdir(folder) == []


def _job(code: str, wall_seconds: float = 120) -> Job:
    return Job(code, b"", replace(DEFAULT_LIMITS, wall_seconds=wall_seconds))


def _slow_job(value: int) -> Job:
    """Long enough to be killed in the middle."""
    return _job(f"import time; time.sleep(1)\n{value}")


def _children(pid: int) -> list[int]:
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, parent = int(entry.parent.name), int(entry.read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError):
            continue
        if parent == pid:
            found.append(name)
    return found


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _below(pid: int) -> list[int]:
    children = _children(pid)
    return children + [below for child in children for below in _below(child)]


async def test_a_killed_zygote_is_restarted_and_each_call_answered_once(pool: WorkerPool, until: Until) -> None:
    calls = [asyncio.ensure_future(pool.run(_slow_job(n))) for n in range(12)]
    await until(lambda: pool.running == _SLOTS)
    assert pool.zygote_pid is not None
    os.kill(pool.zygote_pid, signal.SIGKILL)
    placed = await asyncio.gather(*calls)
    assert [answer.outcome.value for answer in placed] == [str(n) for n in range(12)]
    assert (pool.counters.zygote_restarts, pool.running, pool.queued) == (1, 0, 0)


async def test_killed_slots_are_replaced_and_their_calls_run_again(pool: WorkerPool, until: Until) -> None:
    calls = [asyncio.ensure_future(pool.run(_slow_job(n))) for n in range(9)]
    await until(lambda: pool.running == _SLOTS)
    assert pool.zygote_pid is not None
    for slot in _children(pool.zygote_pid)[:2]:
        os.kill(slot, signal.SIGKILL)
    placed = await asyncio.gather(*calls)
    assert [answer.outcome.value for answer in placed] == [str(n) for n in range(9)]
    assert pool.counters.slots_lost == 2
    assert pool.counters.zygote_restarts == 0


async def test_a_slot_whose_forker_is_killed_is_replaced(pool: WorkerPool, until: Until) -> None:
    call = asyncio.ensure_future(pool.run(_slow_job(1)))
    await until(lambda: pool.running == 1)
    assert pool.zygote_pid is not None
    for slot in _children(pool.zygote_pid):
        for forker in _children(slot):
            os.kill(forker, signal.SIGKILL)
    # Where there is no forker it was the program that was killed.
    has_forker = pool.plan.namespaces and EXTENSION is not None
    outcome = (await call).outcome
    assert (outcome.status, outcome.value) == (("ok", "1") if has_forker else ("crashed", None))
    assert (await pool.run(_job("2"))).outcome.value == "2"


async def test_a_call_whose_slots_keep_dying_is_unavailable(pool: WorkerPool) -> None:
    call = asyncio.ensure_future(pool.run(_job("import time; time.sleep(60)")))
    while not call.done():
        if pool.running and pool.zygote_pid is not None:
            for slot in _children(pool.zygote_pid):
                with contextlib.suppress(ProcessLookupError):  # it was gone before it was its turn
                    os.kill(slot, signal.SIGKILL)
        await asyncio.sleep(0.05)
    expected = "unavailable" if pool.plan.shields_supervisor else "crashed"
    assert (await call).outcome.status == expected


async def test_a_stopped_slot_does_not_hold_a_call_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rstar_sandbox.pool.START_SECONDS", 0.0)
    async with _running(tmp_path / "folder", 1) as pool:
        monkeypatch.setattr("rstar_sandbox.pool._ANSWER_GRACE_SECONDS", 1.0)
        assert pool.zygote_pid is not None
        (slot,) = _children(pool.zygote_pid)
        os.kill(slot, signal.SIGSTOP)
        call = asyncio.ensure_future(pool.run(_job("5", wall_seconds=1)))
        await asyncio.sleep(0)
        monkeypatch.setattr("rstar_sandbox.pool._ANSWER_GRACE_SECONDS", 60.0)  # for the second attempt
        assert (await call).outcome.value == "5"
        assert pool.counters.slots_lost == 1


async def test_a_waiting_child_that_is_killed_costs_its_slot_nothing(pool: WorkerPool) -> None:
    assert pool.zygote_pid is not None
    for slot in _children(pool.zygote_pid):
        makers = _children(slot) if pool.plan.namespaces and EXTENSION is not None else [slot]
        for child in (child for maker in makers for child in _children(maker)):
            with contextlib.suppress(ProcessLookupError):  # ended with the one before it
                os.kill(child, signal.SIGKILL)
    placed = await asyncio.gather(*(pool.run(_job(f"{n}")) for n in range(_SLOTS)))
    assert [answer.outcome.value for answer in placed] == [str(n) for n in range(_SLOTS)]
    assert (pool.counters.slots_lost, pool.counters.forked_late) == (0, _SLOTS)


async def test_a_cancelled_call_is_killed_and_its_slot_serves_on(tmp_path: Path, until: Until) -> None:
    async with _running(tmp_path / "folder", 1) as pool:
        call = asyncio.ensure_future(pool.run(_job("import time; time.sleep(100)")))
        await until(lambda: pool.running == 1)
        call.cancel()
        assert (await pool.run(_job("7"))).outcome.value == "7"
        assert pool.counters.slots_lost == 0


async def test_a_self_test_that_does_not_end_starts_the_zygote_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    async def fails_once(template: Template) -> tuple[Plan, tuple[str, ...]]:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise asyncio.TimeoutError
        return await admit(template)

    monkeypatch.setattr("rstar_sandbox.pool.admit", fails_once)
    async with _running(tmp_path / "folder", 1) as pool:
        assert (await pool.run(_job("5"))).outcome.value == "5"
        assert pool.counters.zygote_restarts == 1


async def test_a_level_that_cannot_be_had_fails_closed(tmp_path: Path) -> None:
    settings = SandboxSettings(slots=1, warm=(), folder=tmp_path, isolation="limits", require_level="container")
    pool = WorkerPool(settings)
    pool.start()
    with pytest.raises(IsolationError, match="'container' is required and this machine offers 'limits'"):
        await pool.ready()
    with pytest.raises(IsolationError):
        await pool.run(_job("print('ran')"))
    await pool.stop()


@pytest.mark.parametrize("level", ["off", "limits"])
async def test_a_lower_level_is_taken_when_asked_for_and_named(tmp_path: Path, level: str) -> None:
    pool = WorkerPool(SandboxSettings(slots=1, warm=(), folder=tmp_path, isolation=level))
    pool.start()
    outcome = (await pool.run(_job("3"))).outcome
    assert (outcome.value, outcome.isolation, pool.level) == ("3", level, level)
    await pool.stop()


async def test_a_session_whose_worker_is_killed_in_mid_cell_ends_with_one_typed_error(
    pool: WorkerPool,
    until: Until,
    sleeper: Callable[[str], str],
    processes_called: Callable[[str], list[int]],
) -> None:
    sessions, name = SessionTable(pool), uuid.uuid4().hex[:15]
    zygote = pool.zygote_pid
    assert zygote is not None
    before = set(_children(zygote))
    session = await sessions.open(DEFAULT_LIMITS, 0)
    await sessions.run_cell(session, _job("x = 1"))
    (slot,) = set(_children(zygote)) - before
    cell = asyncio.ensure_future(sessions.run_cell(session, _job(sleeper(name))))
    await until(lambda: processes_called(name))
    os.kill(slot, signal.SIGKILL)
    outcome = (await cell).outcome
    assert (outcome.status, outcome.state_lost) == ("unavailable", "the session's worker was lost")
    with pytest.raises(SessionLostError, match="worker was lost"):
        await sessions.run_cell(session, _job("x"))
    sessions.close_all()


async def test_stopping_leaves_no_process(pool: WorkerPool, until: Until) -> None:
    zygote = pool.zygote_pid
    assert zygote is not None
    call = asyncio.ensure_future(pool.run(_job("import time; time.sleep(60)")))
    await until(lambda: pool.running == 1 and len(_below(zygote)) >= 2 * _SLOTS)
    everything = [zygote, *_below(zygote)]
    await pool.stop()
    assert not any(_alive(pid) for pid in everything)
    assert (await call).outcome.status == "unavailable"


async def test_a_killed_service_takes_everything_with_it_and_starts_again_on_its_socket(
    tmp_path: Path, until: Until
) -> None:
    command = [
        sys.executable,
        "-m",
        "rstar_sandbox",
        "serve",
        "--slots",
        "2",
        "--warm",
        "",
        "--work-dir",
        str(tmp_path),
    ]
    service = EmbeddedService("sandbox", command, log_path=tmp_path / "log")
    endpoint = await asyncio.to_thread(service.start)
    try:
        first = service.pid
        assert first is not None
        async with SandboxClient(endpoint) as client:
            call = asyncio.ensure_future(client.run("import time; time.sleep(1); 'answered'"))
            await until(lambda: len(_below(first)) >= 5)  # zygote, two slots, a child of each
            everything = _below(first)
            os.kill(first, signal.SIGKILL)
            assert (await call).value == "'answered'"
            await until(lambda: not any(_alive(pid) for pid in everything))
        await until(lambda: service.restarts == 1)
        assert service.pid != first
    finally:
        await asyncio.to_thread(service.stop)
    await until(lambda: os.listdir(tmp_path) == ["log"])


def test_a_sandbox_leaves_no_process_behind() -> None:
    before = set(_children(os.getpid()))
    with Sandbox(slots=1, options=["--warm", ""]) as sandbox:
        (service,) = set(_children(os.getpid())) - before
        sandbox.run("1")
        everything = [service, *_below(service)]
    assert not any(_alive(pid) for pid in everything)


def test_a_folder_of_a_killed_zygote_is_removed_and_one_in_use_is_not(tmp_path: Path) -> None:
    from rstar_sandbox.folders import make_folder, remove_stale_folders

    stale, lock = make_folder(str(tmp_path))
    os.close(lock)
    used, held = make_folder(str(tmp_path))
    assert remove_stale_folders(str(tmp_path)) == [stale]
    assert [str(entry) for entry in tmp_path.iterdir()] == [used]
    os.close(held)
