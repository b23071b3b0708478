"""Ten times more calls than can be run, for a while: nothing may time out by waiting, and calm must come back at once.

Callers do not hold back: a call that is refused counts as refused and the next one comes when it is due. Programs sleep
for most of their time, so that it is the service that is overloaded, not this machine.
"""

from __future__ import annotations

import asyncio
import collections
import time
from dataclasses import dataclass, field
from typing import Any

import grpc
import grpc.aio

from rstar_protos.sandbox.v1 import sandbox_pb2
from rstar_protos.service import RETRY_AFTER_KEY
from rstar_sandbox.bench.intervals import quantile
from rstar_sandbox.bench.targets import Service
from rstar_sandbox.client import execute_request
from rstar_sandbox.limits import Limits
from rstar_sandbox.status import Status

__all__ = ["Overload", "measure_overload"]

_PROGRAM_SECONDS = 0.04
_LIMIT_SECONDS = 2.0
_FACTOR = 10
_CALM_CALLS = 100
_WINDOW_SECONDS = 0.5
_PROBE_SECONDS = 0.05
_PATIENCE_SECONDS = 60.0
_NORMAL = 1.5
"""A p99 up to this many times the one from before counts as normal again; so does anything below 50 ms more."""


@dataclass
class Overload:
    """What happened."""

    capacity_per_second: float = 0.0
    offered_per_second: float = 0.0
    statuses: dict[str, int] = field(default_factory=dict)
    """Of answers; calls that failed otherwise than by a refusal by the name of their code."""
    refused: int = 0
    refused_without_hint: int = 0
    calm_p99_ms: float = 0.0
    recovery_seconds: float = 0.0
    """From the last call offered to the first half second in which the p99 is normal."""

    @property
    def passed(self) -> bool:
        """No false timeout, hints with all refusals, calm within two seconds."""
        only_ok = set(self.statuses) <= {"ok"}
        return only_ok and self.refused > 0 and not self.refused_without_hint and self.recovery_seconds <= 2.0


async def measure_overload(service: Service, seconds: float) -> Overload:
    """Overloads an open service.

    Args:
        service: whose slots are known.
        seconds: how long.
    """
    stub: Any = service._stub
    result = Overload()
    statuses: collections.Counter[str] = collections.Counter()

    async def call() -> float | None:
        """Seconds until the answer; None: refused."""
        limits = Limits(wall_seconds=_LIMIT_SECONDS, cpu_seconds=_LIMIT_SECONDS)
        request = execute_request(f"import time; time.sleep({_PROGRAM_SECONDS}); print('done')", limits=limits)
        started = time.perf_counter()
        try:
            response: sandbox_pb2.ExecuteResponse = await stub.Execute(request)
        except grpc.aio.AioRpcError as error:
            if error.code() != grpc.StatusCode.RESOURCE_EXHAUSTED:
                statuses[error.code().name] += 1
                return None
            result.refused += 1
            result.refused_without_hint += all(key != RETRY_AFTER_KEY for key, _ in error.trailing_metadata() or ())
            return None
        statuses[Status.from_proto(response.status).value] += 1
        return time.perf_counter() - started

    calm = [await call() or 0.0 for _ in range(_CALM_CALLS)]
    result.calm_p99_ms = 1000 * quantile(calm, 0.99)
    result.capacity_per_second = await _capacity(call, service.slots)

    interval = 1.0 / (_FACTOR * result.capacity_per_second)
    started, offered, tasks = time.perf_counter(), 0, set[asyncio.Task[float | None]]()
    while (now := time.perf_counter() - started) < seconds:
        while offered * interval <= now:
            task = asyncio.ensure_future(call())
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            offered += 1
        await asyncio.sleep(max(0.0, offered * interval - (time.perf_counter() - started)))
    result.offered_per_second = offered / (time.perf_counter() - started)
    result.recovery_seconds = await _recovery(call, result.calm_p99_ms / 1000)
    await asyncio.gather(*tasks)
    result.statuses = dict(statuses)
    return result


async def _capacity(call: Any, slots: int) -> float:
    started, done = time.perf_counter(), 0

    async def caller() -> None:
        nonlocal done
        while time.perf_counter() - started < 2.0:
            await call()
            done += 1

    await asyncio.gather(*(caller() for _ in range(2 * slots)))
    return done / (time.perf_counter() - started)


async def _recovery(call: Any, calm_p99: float) -> float:
    """Seconds until single calls are answered as before."""
    bound = max(_NORMAL * calm_p99, calm_p99 + 0.05)
    started, asked = time.perf_counter(), time.perf_counter()
    seen = collections.deque[tuple[float, float]]()
    while asked - started < _PATIENCE_SECONDS:
        if await call() is None:
            # A caller that is refused comes back soon; what it waits in all is what counts.
            await asyncio.sleep(_PROBE_SECONDS)
            continue
        now = time.perf_counter()
        seen.append((asked, now - asked))
        asked = now
        while seen and seen[0][0] < now - _WINDOW_SECONDS:
            seen.popleft()
        if seen and now - seen[0][0] >= 0.8 * _WINDOW_SECONDS and max(each for _, each in seen) <= bound:
            return seen[0][0] - started
    return float("inf")
