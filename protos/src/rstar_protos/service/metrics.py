"""Prometheus metrics that every service has, whatever it does."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

__all__ = ["CALLS_IN_PROGRESS", "CALLS_TOTAL", "CALL_SECONDS"]

CALLS_TOTAL = Counter("rstar_grpc_calls_total", "Finished calls", ["method", "code"])
CALLS_IN_PROGRESS = Gauge("rstar_grpc_calls_in_progress", "Calls being served", ["method"])
CALL_SECONDS = Histogram(
    "rstar_grpc_call_seconds",
    "Time from the arrival of a call to its end",
    ["method"],
    buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000),
)
