"""What the reward service counts, beside what every service counts."""

from __future__ import annotations

from prometheus_client import Counter, Gauge, Histogram

__all__ = ["VERDICTS_TOTAL", "VERDICT_SECONDS", "WORKERS", "WORKERS_REPLACED"]

VERDICTS_TOTAL = Counter("rstar_reward_verdicts_total", "Verdicts", ["verifier", "status"])
VERDICT_SECONDS = Histogram(
    "rstar_reward_verdict_seconds",
    "Time from the arrival of a request to its verdict",
    buckets=(0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 2, 3, 4, 10),
)
WORKERS = Gauge("rstar_reward_workers", "Living worker processes")
WORKERS_REPLACED = Gauge("rstar_reward_workers_replaced", "Workers replaced after a kill, a crash or growth")
