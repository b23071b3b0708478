"""Processes killed at random in the middle of work: every call has to be answered, once, with its own answer.

A dispatcher and two worker nodes on this machine; what is killed is a node, a zygote, a slot, or what a slot started,
its forker or a program, whatever chance finds below the nodes. A node that was killed is started again, as an
operator's supervisor would.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

from rstar_protos.sandbox.v1 import sandbox_pb2, sandbox_pb2_grpc
from rstar_protos.service import open_channel
from rstar_sandbox.client import SandboxClient
from rstar_sandbox.status import Status

__all__ = ["Deaths", "measure_deaths"]

_NODES = 2
_IN_FLIGHT = 64
_CALLS_BETWEEN = (50, 400)
_READY_SECONDS = 120.0
_LOOK_SECONDS = 0.02


@dataclass
class Deaths:
    """What happened."""

    calls: int
    answers: int = 0
    foreign: int = 0
    """Answers that are not the call's own."""
    twice: int = 0
    statuses: dict[str, int] = field(default_factory=dict)
    killed: dict[str, int] = field(default_factory=dict)
    """By kind of process."""
    seconds: float = 0.0
    worst_milliseconds: float = 0.0

    @property
    def passed(self) -> bool:
        """Each call answered, once, with its own answer."""
        return self.answers == self.calls and not self.foreign and not self.twice and set(self.statuses) == {"ok"}


async def measure_deaths(
    calls: int, seed: int = 0, options: tuple[str, ...] = (), step: Callable[[int], None] = lambda _: None
) -> Deaths:
    """Runs calls while processes die.

    Args:
        calls: how many.
        seed: of what dies when.
        options: of the worker nodes.
        step: told how many calls are answered.
    """
    result, chance = Deaths(calls), random.Random(seed)  # noqa: S311 - of what dies
    statuses: collections.Counter[str] = collections.Counter()
    killed: collections.Counter[str] = collections.Counter()
    seen: set[str] = set()
    async with _cluster(options) as (endpoint, nodes), open_channel(endpoint) as channel:
        client = SandboxClient(channel, patience_s=120.0)
        await _attached(channel, _NODES)
        killer = asyncio.ensure_future(_kill(nodes, chance, killed, lambda: result.answers))
        numbers = iter(range(calls))
        started = time.perf_counter()

        async def caller() -> None:
            for number in numbers:
                request_id, before = f"call-{number}", time.perf_counter()
                answer = await client.run(f"print({number} * 7919)", request_id=request_id)
                result.worst_milliseconds = max(result.worst_milliseconds, 1000 * (time.perf_counter() - before))
                statuses[answer.status.value] += 1
                result.answers += 1
                result.twice += answer.request_id in seen
                seen.add(answer.request_id)
                own = answer.request_id == request_id and answer.stdout == f"{number * 7919}\n".encode()
                result.foreign += answer.status is Status.OK and not own
                step(result.answers)

        try:
            await asyncio.gather(*(caller() for _ in range(_IN_FLIGHT)))
        finally:
            killer.cancel()
            await asyncio.gather(killer, return_exceptions=True)
        result.seconds = time.perf_counter() - started
    result.statuses, result.killed = dict(statuses), dict(killed)
    return result


class _Node:
    """A worker node that is started again when it dies."""

    def __init__(self, name: str, endpoint: str, options: tuple[str, ...]) -> None:
        self._command = [
            *(sys.executable, "-m", "rstar_sandbox", "serve", "--role", "worker"),
            *("--name", name, "--dispatcher", endpoint, *options),
        ]
        self.process = self._start()

    def revive(self) -> None:
        """Starts it again if it is dead."""
        if self.process.poll() is not None:
            self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        nowhere = subprocess.DEVNULL
        return subprocess.Popen(  # noqa: S603 - our own command
            [*self._command, "--watch-parent"], stdin=subprocess.PIPE, stdout=nowhere, stderr=nowhere
        )


@contextlib.asynccontextmanager
async def _cluster(options: tuple[str, ...]) -> AsyncIterator[tuple[str, list[_Node]]]:
    nodes: list[_Node] = []
    with tempfile.TemporaryDirectory(prefix="rstar-bench-") as folder:
        endpoint = f"unix:{Path(folder) / 'dispatcher.sock'}"
        dispatcher = await asyncio.to_thread(_start_dispatcher, endpoint)
        try:
            nodes += [_Node(f"node-{number}", endpoint, options) for number in range(_NODES)]
            yield endpoint, nodes
        finally:
            for process in (*(node.process for node in nodes), dispatcher):
                process.terminate()
            for process in (*(node.process for node in nodes), dispatcher):
                await asyncio.to_thread(process.wait)


def _start_dispatcher(endpoint: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(  # noqa: S603 - our own command
        [sys.executable, "-m", "rstar_sandbox", "serve", "--role", "dispatcher", "--listen", endpoint],
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    process.stdout.readline()  # the ready line
    return process


async def _attached(channel: object, nodes: int) -> None:
    stub = sandbox_pb2_grpc.SandboxServiceStub(channel)
    give_up = time.monotonic() + _READY_SECONDS
    while (await stub.GetCapacity(sandbox_pb2.GetCapacityRequest(), wait_for_ready=True)).workers < nodes:
        if time.monotonic() > give_up:
            raise TimeoutError("the worker nodes did not attach")
        await asyncio.sleep(0.1)


async def _kill(
    nodes: list[_Node], chance: random.Random, killed: collections.Counter[str], answers: Callable[[], int]
) -> None:
    due = chance.randint(*_CALLS_BETWEEN)
    while True:
        # By calls and not by the clock: on a slow machine nothing would come back between two deaths.
        await asyncio.sleep(_LOOK_SECONDS)
        for each in nodes:
            each.revive()
        if answers() < due:
            continue
        due = answers() + chance.randint(*_CALLS_BETWEEN)
        node = chance.choice(nodes)
        below = await asyncio.to_thread(_descendants, node.process.pid)
        depth = chance.randrange(3)
        victims = [pid for pid, level in below if level == depth] or [node.process.pid]
        victim = chance.choice(victims)
        kind = "node" if victim == node.process.pid else ("zygote or below", "slot or below", "program or below")[depth]
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
            killed[kind] += 1


def _descendants(root: int) -> list[tuple[int, int]]:
    """Processes below one, with their depth below it, from 0."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(OSError), open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                children.setdefault(int(file.read().rpartition(")")[2].split()[1]), []).append(int(name))
    found, level = [], 0
    parents = [root]
    while parents:
        parents = [child for parent in parents for child in children.get(parent, ())]
        found += [(pid, level) for pid in parents]
        level += 1
    return found
