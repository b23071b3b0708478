"""Prometheus metrics of the rollout service, beside those that every service has."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client import Counter, Gauge, Histogram

from rstar_model.trajectory import Trajectory

__all__ = ["count_continued", "count_moved", "count_recomputed", "record", "show_pool"]

_ROLLOUTS = Counter("rstar_rollouts_total", "Finished rollouts", ["end_reason"])
_TOOL_CALLS = Counter("rstar_rollout_tool_calls_total", "Tool calls of finished rollouts", ["status"])
_TOKENS = Counter("rstar_rollout_tokens_total", "Tokens of finished rollouts after the prompt", ["kind"])
_SECONDS = Histogram(
    "rstar_rollout_seconds",
    "From the first turn of a rollout to its end",
    buckets=(0.1, 0.3, 1, 3, 10, 30, 100, 300, 1000),
)
_MOVED = Counter("rstar_rollout_moved_total", "Rollouts that have lost their engine")
_RECOMPUTED = Counter("rstar_rollout_recomputed_tokens_total", "Cached prefix tokens that were computed again")
_CONTINUED = Counter("rstar_rollout_continued_total", "Stopped rollouts that were gone on with")
_KEPT = Counter("rstar_rollout_continued_tokens_total", "Policy tokens that stopped rollouts were gone on with")
_POOL = Gauge("rstar_rollout_scheduled", "Rollouts with an engine, and without", ["state"])


def count_moved(rollouts: int) -> None:
    """Rollouts whose engine has died."""
    _MOVED.inc(rollouts)


def count_recomputed(tokens: int) -> None:
    """Prefix tokens that an engine had, and had to compute again."""
    _RECOMPUTED.inc(tokens)


def show_pool(in_flight: int, waiting: int) -> None:
    """What the scheduler holds now."""
    _POOL.labels("in_flight").set(in_flight)
    _POOL.labels("waiting").set(waiting)


def count_continued(partial: Sequence[Trajectory]) -> None:
    """Stopped rollouts that a request goes on with; their tokens were counted when they were stopped."""
    _CONTINUED.inc(len(partial))
    _KEPT.inc(sum(trajectory.policy_tokens for trajectory in partial))


def record(trajectory: Trajectory) -> None:
    """Count a finished rollout."""
    _ROLLOUTS.labels(trajectory.end_reason.value).inc()
    for call in trajectory.tool_calls:
        _TOOL_CALLS.labels(call.status.value).inc()
    _TOKENS.labels("policy").inc(trajectory.policy_tokens)
    _TOKENS.labels("other").inc(trajectory.response_tokens - trajectory.policy_tokens)
    _SECONDS.observe(trajectory.wall_seconds)
