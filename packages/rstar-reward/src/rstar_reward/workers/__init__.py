"""Worker processes that may be killed at any moment: where symbolic mathematics runs."""

from rstar_reward.workers.pool import PoolSettings, Reply, ReplyKind, WorkerPool

__all__ = ["PoolSettings", "Reply", "ReplyKind", "WorkerPool"]
