"""Embedded services: started, restarted on the same socket, given up, and never left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rstar_protos.errors import ServiceUnavailableError, UserInputError
from rstar_protos.sampling.v1 import sampling_pb2, sampling_pb2_grpc
from rstar_protos.service import EmbeddedService, call_with_retry, open_channel

HOST = Path(__file__).parent / "hosts" / "echo.py"
DEADLINE_SECONDS = 60.0


def until(condition: Callable[[], object]) -> None:
    """Waits for a condition; fails when it does not come about."""
    give_up = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < give_up, "the condition did not come about"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.fixture
def flag(tmp_path: Path) -> Path:
    """While this file exists, the child ends before it is ready."""
    return tmp_path / "die"


@pytest.fixture
def echo(flag: Path) -> Iterator[EmbeddedService]:
    """A started service."""
    child = EmbeddedService("echo", [sys.executable, str(HOST), "--die", str(flag)])
    child.start()
    yield child
    child.stop()


async def ask(endpoint: str, seconds: float = 0.0, keep: int = 1) -> str:
    async with open_channel(endpoint) as channel:
        stub = sampling_pb2_grpc.SamplingServiceStub(channel)
        request = sampling_pb2.ResampleGroupRequest(group_id="g", epsilon=seconds, keep=keep)
        answer = await call_with_retry(stub.ResampleGroup, request, timeout_s=30, patience_s=DEADLINE_SECONDS)
        return str(answer.group_id)


async def test_it_answers_and_its_socket_is_private(echo: EmbeddedService) -> None:
    assert await ask(echo.endpoint) == "g"
    path = echo.endpoint.removeprefix("unix:")
    assert os.stat(path).st_mode & 0o077 == 0
    assert os.stat(os.path.dirname(path)).st_mode & 0o077 == 0


async def test_a_call_in_flight_survives_the_death_of_the_service(echo: EmbeddedService) -> None:
    first = echo.pid
    call = asyncio.ensure_future(ask(echo.endpoint, seconds=0.5))
    await asyncio.sleep(0.2)
    assert first is not None
    os.kill(first, signal.SIGKILL)
    assert await call == "g"
    assert echo.pid != first
    assert echo.restarts == 1


async def test_back_pressure_is_waited_out(echo: EmbeddedService) -> None:
    assert await ask(echo.endpoint, keep=99) == "g"


def test_it_is_given_up_after_three_failed_restarts(flag: Path) -> None:
    reasons: list[str] = []
    child = EmbeddedService("echo", [sys.executable, str(HOST), "--die", str(flag)], on_failure=reasons.append)
    child.start()
    try:
        flag.touch()
        assert child.pid is not None
        os.kill(child.pid, signal.SIGKILL)
        until(lambda: child.failure)
        assert "3 attempts failed" in str(child.failure)
        assert reasons == [child.failure]
    finally:
        child.stop()


def test_a_child_that_refuses_its_input_passes_its_error_on(flag: Path) -> None:
    flag.touch()
    child = EmbeddedService("echo", [sys.executable, str(HOST), "--die", str(flag)])
    with pytest.raises(UserInputError, match="echo service: --die"):
        child.start()
    child.stop()


def test_a_child_that_cannot_start_is_an_infrastructure_error() -> None:
    child = EmbeddedService("echo", [sys.executable, "-c", "raise SystemExit(7)"])
    with pytest.raises(ServiceUnavailableError, match="exit code 7"):
        child.start()
    child.stop()


def test_stopping_leaves_nothing_behind(flag: Path) -> None:
    child = EmbeddedService("echo", [sys.executable, str(HOST)])
    endpoint = child.start()
    pid = child.pid
    child.stop()
    child.stop()
    assert pid is not None
    assert not alive(pid)
    assert not Path(endpoint.removeprefix("unix:")).parent.exists()


def test_what_a_killed_child_has_started_is_gone_before_another_takes_its_place(tmp_path: Path) -> None:
    started = tmp_path / "started"
    script = 'sleep 600 </dev/null >/dev/null 2>&1 & echo $! >> "$0"; exec "$@"'
    child = EmbeddedService("echo", ["sh", "-c", script, str(started), sys.executable, str(HOST)])
    child.start()
    try:
        (helper,) = map(int, started.read_text().split())
        assert child.pid is not None
        assert alive(helper)
        os.kill(child.pid, signal.SIGKILL)
        until(lambda: child.restarts)
        first, second = map(int, started.read_text().split())
        assert first == helper
        until(lambda: not alive(helper))
        assert alive(second)
    finally:
        child.stop()
    until(lambda: not alive(second))


def test_the_child_ends_when_its_parent_is_killed() -> None:
    code = (
        "import sys, time; from rstar_protos.service import EmbeddedService\n"
        f"child = EmbeddedService('echo', [sys.executable, {str(HOST)!r}]); child.start()\n"
        "print(child.pid, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert alive(pid)
    parent.kill()
    parent.wait()
    until(lambda: not alive(pid))
