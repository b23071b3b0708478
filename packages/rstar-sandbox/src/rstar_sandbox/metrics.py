"""Prometheus metrics of the sandbox."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram, Info

from rstar_sandbox.executor import Placed
from rstar_sandbox.pool import WorkerPool

__all__ = ["observe", "watch_pool"]

_SECONDS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100)
_PROGRAMS = Counter("rstar_sandbox_programs_total", "Programs answered", ["status"])
_QUEUE = Histogram("rstar_sandbox_queue_seconds", "Time a program waited for a slot", buckets=_SECONDS)
_WALL = Histogram("rstar_sandbox_wall_seconds", "Time from the start of a program to its end", buckets=_SECONDS)
_TRUNCATED = Counter("rstar_sandbox_truncated_total", "Programs whose output was cut", ["stream"])
_SLOTS = Gauge("rstar_sandbox_slots", "Programs that can run at the same time")
_RUNNING = Gauge("rstar_sandbox_running", "Programs running")
_QUEUED = Gauge("rstar_sandbox_queued", "Programs waiting for a slot")
_LOST = Gauge("rstar_sandbox_slots_lost", "Slots that died and were replaced")
_RESTARTS = Gauge("rstar_sandbox_zygote_restarts", "Times the zygote died and was started again")
_RETRIES = Gauge("rstar_sandbox_retries", "Times a program was run again because its slot was lost")
_ISOLATION = Info("rstar_sandbox_isolation", "The isolation in force")


def watch_pool(pool: WorkerPool) -> None:
    """Ties the gauges to a pool."""
    _SLOTS.set(pool.settings.slots)
    _RUNNING.set_function(lambda: pool.running)
    _QUEUED.set_function(lambda: pool.queued)
    _LOST.set_function(lambda: pool.counters.slots_lost)
    _RESTARTS.set_function(lambda: pool.counters.zygote_restarts)
    _RETRIES.set_function(lambda: pool.counters.retries)
    _ISOLATION.info({"level": pool.level})


def observe(placed: Placed) -> None:
    """Counts one answered program."""
    outcome = placed.outcome
    _PROGRAMS.labels(outcome.status).inc()
    _QUEUE.observe(placed.queue_seconds)
    _WALL.observe(outcome.wall_seconds)
    for stream, total, kept in (
        ("stdout", outcome.stdout_bytes, outcome.stdout),
        ("stderr", outcome.stderr_bytes, outcome.stderr),
    ):
        if total > len(kept):
            _TRUNCATED.labels(stream).inc()
