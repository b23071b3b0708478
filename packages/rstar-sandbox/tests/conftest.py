"""One real service for all tests that do not harm it."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
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


@pytest.fixture(scope="session")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(slots=2) as running:
        running.run("")
        yield running


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
