"""What vLLM tells of itself after every step, kept for the engine state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vllm.v1.metrics.loggers import StatLoggerBase

__all__ = ["VllmStats", "make_stats"]


@dataclass
class VllmStats:
    """Latest figures; ``tokens_generated`` only grows."""

    tokens_generated: int = 0
    waiting: int = 0
    kv_usage: float = 0.0


def make_stats() -> tuple[VllmStats, Any]:
    """The figures, and the logger factory for `AsyncLLM` that keeps them up to date."""
    stats = VllmStats()

    class Recorder(StatLoggerBase):
        def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
            pass

        def record(
            self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
        ) -> None:
            if scheduler_stats is not None:
                stats.waiting = int(scheduler_stats.num_waiting_reqs)
                stats.kv_usage = float(scheduler_stats.kv_cache_usage)
            if iteration_stats is not None:
                stats.tokens_generated += int(iteration_stats.num_generation_tokens)

        def log_engine_initialized(self) -> None:
            pass

    return stats, Recorder
