"""One real service for all tests that do not harm it, in each world that this machine can be made into.

Tests of programs run where the tests run ("here"), as an ordinary user, and as in a container (see
`worlds/launch.py`); the summary names the isolation level that each of them turned out to have.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc.aio
import hypothesis
import pytest

from rstar_protos.sandbox.v1 import sandbox_pb2_grpc
from rstar_protos.service import open_channel
from rstar_sandbox import Sandbox

# Machines differ in speed; what is tested here is not how fast an example is.
hypothesis.settings.register_profile("sandbox", deadline=None)
hypothesis.settings.load_profile("sandbox")


HERE = "here"
_LAUNCH = Path(__file__).parent / "worlds" / "launch.py"
# Modules, and folders of them, whose tests are about what programs can do, by the worlds they run in.
_WORLDS_OF = {
    "faults": (HERE, "user", "container"),
    "test_sessions": (HERE, "user", "container"),
    "test_isolation": (HERE, "user", "container", "contained-user"),
    "test_attacks": (HERE, "user", "container", "contained-user"),
}
_LEVELS = pytest.StashKey[dict[str, str]]()


@functools.cache
def _can_be_made(world: str) -> bool:
    """Root can make all of them where it may mount; an ordinary user is one already."""
    if world == HERE:
        return True
    if os.geteuid() != 0 and world != "contained-user":
        return False
    command = [sys.executable, str(_LAUNCH), world, sys.executable, "-c", "import rstar_sandbox.service"]
    return subprocess.run(command, capture_output=True, timeout=120).returncode == 0


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    module = Path(metafunc.module.__file__ or "")
    wanted = _WORLDS_OF.get(module.stem) or _WORLDS_OF.get(module.parent.name, (HERE,))
    if "sandbox" in metafunc.fixturenames and len(wanted) > 1:
        worlds = [world for world in wanted if _can_be_made(world)]
        metafunc.parametrize("sandbox", worlds, indirect=True, scope="session")


@pytest.fixture(scope="session")
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    world = getattr(request, "param", HERE)
    with Sandbox(slots=2) if world == HERE else _sandbox_in(world) as running:
        level = running.run("").isolation
        request.config.stash.setdefault(_LEVELS, {})[world] = level
        yield running


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    for world, level in config.stash.get(_LEVELS, {}).items():
        terminalreporter.write_line(f"sandbox tests {world}: isolation level {level}")


@contextlib.contextmanager
def _sandbox_in(world: str) -> Iterator[Sandbox]:
    """A service in another world, over loopback: its user cannot reach this one's socket folders."""
    serve = ["-m", "rstar_sandbox", "serve", "--listen", "127.0.0.1:0", "--slots", "2", "--warm", "numpy"]
    command = [sys.executable, str(_LAUNCH), world, sys.executable, *serve, "--watch-parent"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        with Sandbox(ready["listening"]) as running:
            yield running
    finally:
        process.communicate(timeout=60)  # the end of its standard input ends it


@pytest.fixture
async def stub(sandbox: Sandbox) -> AsyncIterator[sandbox_pb2_grpc.SandboxServiceStub]:
    async with open_channel(sandbox.endpoint) as channel:
        yield sandbox_pb2_grpc.SandboxServiceStub(channel)


@pytest.fixture
async def small() -> AsyncIterator[sandbox_pb2_grpc.SandboxServiceStub]:
    """A service with one slot and room for one more program in its queue."""
    running = await asyncio.to_thread(Sandbox, slots=1, options=["--queue-limit", "1", "--warm", ""])
    channel: grpc.aio.Channel = open_channel(running.endpoint)
    try:
        yield sandbox_pb2_grpc.SandboxServiceStub(channel)
    finally:
        await channel.close()
        await asyncio.to_thread(running.close)


@pytest.fixture(scope="session")
def processes_called() -> Callable[[str], list[int]]:
    """Ids of the processes, in whatever world, that have a name or a word of the command line."""

    def find(name: str) -> list[int]:
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                words = [*(folder / "cmdline").read_bytes().split(b"\0"), (folder / "comm").read_bytes().rstrip()]
            except OSError:
                continue
            if name.encode() in words:
                found.append(int(folder.name))
        return found

    return find


@pytest.fixture(scope="session")
def sleeper() -> Callable[[str], str]:
    """A program that gives its process a name of at most 15 characters, and then sleeps for a minute."""
    return lambda name: f"import ctypes, time; ctypes.CDLL(None).prctl(15, b'{name}'); time.sleep(60)"


@pytest.fixture
def until() -> Callable[[Callable[[], Any]], Awaitable[None]]:
    """Waits until a condition, plain or async, comes true; fails after a minute."""

    async def wait(condition: Callable[[], Any]) -> None:
        deadline = time.monotonic() + 60
        while True:
            result = condition()
            if inspect.isawaitable(result):
                result = await result
            if result:
                return
            assert time.monotonic() < deadline, "the condition did not come true"
            await asyncio.sleep(0.01)

    return wait
