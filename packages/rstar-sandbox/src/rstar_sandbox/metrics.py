"""Prometheus metrics of the sandbox.

What is counted for each call goes into plain numbers and becomes Prometheus samples when somebody asks for them: the
client library's own histograms would cost more than the rest of the dispatcher.
"""

from __future__ import annotations

import bisect
import collections
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from prometheus_client import REGISTRY, Gauge, Info
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from rstar_protos.sandbox.v1 import sandbox_pb2
from rstar_sandbox.executor import Executor
from rstar_sandbox.status import Status

__all__ = ["PROGRAMS", "ProgramMetrics", "watch_dispatcher", "watch_executor", "watch_worker"]

_SECONDS = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100)
_PHASES = ("fork", "exec", "drain", "reap")


class _Histogram:
    """Counts by bucket, and a sum."""

    def __init__(self, bounds: Sequence[float] = _SECONDS) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect.bisect_left(self._bounds, value)] += 1
        self._sum += value

    def samples(self) -> tuple[list[tuple[str, float]], float]:
        """Cumulative buckets and the sum, as `HistogramMetricFamily` takes them."""
        total, buckets = 0, []
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound == float("inf") else repr(float(bound)), float(total)))
        return buckets, self._sum


class ProgramMetrics(Collector):
    """What happened to programs, call by call."""

    def __init__(self) -> None:
        self._statuses: collections.Counter[int] = collections.Counter()
        self._queue, self._wall = _Histogram(), _Histogram()
        self._phases = {name: _Histogram() for name in _PHASES}
        self._cpu = dict.fromkeys(_PHASES, 0.0)
        self._forks = {"ahead": 0, "late": 0}
        self._truncated = {"stdout": 0, "stderr": 0}
        self._leaked = 0

    def observe(self, response: sandbox_pb2.ExecuteResponse) -> None:
        """Counts one answered program."""
        timing = response.timing
        self._statuses[response.status] += 1
        self._queue.observe(timing.queue_seconds)
        self._wall.observe(timing.wall_seconds)
        if timing.HasField("fork"):
            for name, phase in (
                ("fork", timing.fork),
                ("exec", timing.exec),
                ("drain", timing.drain),
                ("reap", timing.reap),
            ):
                self._phases[name].observe(phase.wall_seconds)
                self._cpu[name] += phase.cpu_seconds
            self._forks["ahead" if timing.forked_ahead else "late"] += 1
        self._truncated["stdout"] += response.stdout_truncated
        self._truncated["stderr"] += response.stderr_truncated
        self._leaked += timing.leaked_processes

    def collect(self) -> Iterable[Metric]:
        """The samples of now."""
        programs = CounterMetricFamily("rstar_sandbox_programs", "Programs answered", labels=["status"])
        for number, count in self._statuses.items():
            programs.add_metric([Status.from_proto(number).value], count)
        yield programs
        for name, words, histogram in (
            ("queue", "Time a program waited for a slot", self._queue),
            ("wall", "Time from the start of a program to its end", self._wall),
        ):
            buckets, total = histogram.samples()
            yield HistogramMetricFamily(f"rstar_sandbox_{name}_seconds", words, buckets=buckets, sum_value=total)
        phases = HistogramMetricFamily("rstar_sandbox_phase_seconds", "Time a call spent in a phase", labels=["phase"])
        cpu = CounterMetricFamily("rstar_sandbox_phase_cpu_seconds", "CPU time of calls by phase", labels=["phase"])
        for name, histogram in self._phases.items():
            buckets, total = histogram.samples()
            phases.add_metric([name], buckets, total)
            cpu.add_metric([name], self._cpu[name])
        yield phases
        yield cpu
        yield _counter(
            "rstar_sandbox_forks",
            "Calls whose child was forked ahead, and those that waited for it",
            "when",
            self._forks,
        )
        yield _counter("rstar_sandbox_truncated", "Programs whose output was cut", "stream", self._truncated)
        yield CounterMetricFamily(
            "rstar_sandbox_leaked_processes", "Processes that programs left behind, found and killed", self._leaked
        )


class _Dispatching(Protocol):
    retries: int
    nodes_lost: int
    refused: int

    @property
    def slots(self) -> int: ...
    @property
    def running(self) -> int: ...
    @property
    def queued(self) -> int: ...
    @property
    def queue_limit(self) -> int: ...
    @property
    def workers(self) -> int: ...


class _Attached(Protocol):
    @property
    def attached(self) -> bool: ...


_GAUGES: dict[str, Gauge] = {}


def watch_dispatcher(dispatcher: _Dispatching) -> None:
    """Shows a dispatcher's queue and nodes."""
    _watch("slots", "Programs that can run at the same time", lambda: dispatcher.slots)
    _watch("running", "Programs that nodes have", lambda: dispatcher.running)
    _watch("queued", "Programs waiting for a node", lambda: dispatcher.queued)
    _watch("queue_limit", "Programs that may wait", lambda: dispatcher.queue_limit)
    _watch("workers", "Worker nodes attached", lambda: dispatcher.workers)
    _watch("workers_lost", "Worker nodes whose stream ended", lambda: dispatcher.nodes_lost)
    _watch("node_retries", "Times a program was run again because its node died", lambda: dispatcher.retries)
    _watch("refused", "Programs refused because the queue was full", lambda: dispatcher.refused)


def watch_executor(executor: Executor) -> None:
    """Shows this machine's slots."""
    _watch("executor_slots", "Slots of this machine", lambda: executor.settings.slots)
    _watch("executor_running", "Slots that run a program", lambda: executor.running)
    _watch("slots_lost", "Slots that died and were replaced", lambda: executor.counters.slots_lost)
    _watch("zygote_restarts", "Times a zygote died and was started again", lambda: executor.counters.zygote_restarts)
    _watch("retries", "Times a program was run again because its slot was lost", lambda: executor.counters.retries)
    REGISTRY.register(_Isolation(executor))


def watch_worker(worker: _Attached) -> None:
    """Shows whether a dispatcher has this worker."""
    _watch("attached", "1 while a dispatcher has this worker", lambda: worker.attached)


class _Isolation(Collector):
    """The level becomes known once the first slots are there."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def collect(self) -> Iterable[Metric]:
        info = Info("rstar_sandbox_isolation", "The isolation in force", registry=None)
        info.info({"level": self._executor.level})
        return info.collect()


def _watch(name: str, words: str, value: Callable[[], float]) -> None:
    gauge = _GAUGES.get(name)
    if gauge is None:
        gauge = _GAUGES[name] = Gauge(f"rstar_sandbox_{name}", words)
    gauge.set_function(value)


def _counter(name: str, words: str, label: str, counts: dict[str, int]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, words, labels=[label])
    for value, count in counts.items():
        family.add_metric([value], count)
    return family


PROGRAMS = ProgramMetrics()
"""Of this process."""
REGISTRY.register(PROGRAMS)
