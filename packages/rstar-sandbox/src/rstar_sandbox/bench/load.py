"""A closed loop: so many callers, each with one call in flight, for so many seconds."""

from __future__ import annotations

import asyncio
import collections
import time
from dataclasses import dataclass, field

from rstar_sandbox.bench.processor_time import machine_seconds, own_seconds
from rstar_sandbox.bench.programs import Programs
from rstar_sandbox.bench.targets import Target

__all__ = ["Round", "run_round"]


@dataclass
class Round:
    """What one round measured."""

    calls: int = 0
    wrong: int = 0
    """Answers without the program's own output."""
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    added: list[float] = field(default_factory=list)
    """Seconds that callers waited beyond the program's own time."""
    client_cpu: float = 0.0
    """CPU seconds of this process and its children."""
    machine_cpu: float = 0.0
    """CPU seconds of everything on this machine; means something on a quiet one only."""
    server_cpu: dict[str, float] = field(default_factory=dict)
    phase_cpu: dict[str, float] = field(default_factory=dict)
    """CPU seconds that the answers report, by phase of a call."""

    @property
    def rate(self) -> float:
        """Calls a second."""
        return self.calls / self.seconds


async def run_round(target: Target, programs: Programs, concurrency: int, seconds: float) -> Round:
    """Runs one round; calls that are in flight when the time is up are waited for and counted."""
    result = Round()
    phases: collections.Counter[str] = collections.Counter()
    server, machine, own = target.server_times(), machine_seconds(), own_seconds()
    started = time.perf_counter()

    async def caller() -> None:
        while time.perf_counter() - started < seconds:
            program = programs.next()
            before = time.perf_counter()
            sample = await target.call(program)
            result.latencies.append(time.perf_counter() - before)
            result.wrong += sample.output != program.expected
            if sample.added_seconds is not None:
                result.added.append(sample.added_seconds)
            phases.update(sample.phases)

    await asyncio.gather(*(caller() for _ in range(concurrency)))
    result.seconds = time.perf_counter() - started
    result.client_cpu = own_seconds() - own
    result.machine_cpu = machine_seconds() - machine
    result.server_cpu = {name: now - server[name] for name, now in target.server_times().items()}
    result.phase_cpu = dict(phases)
    result.calls = len(result.latencies)
    return result
