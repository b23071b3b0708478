"""Learning-rate schedules as pure functions of the step."""

from __future__ import annotations

import math
from typing import Literal

__all__ = ["supervised_learning_rate", "warmup_learning_rate"]


def warmup_learning_rate(step: int, peak: float, warmup_steps: int) -> float:
    """Linear warm-up, then constant (paper section 3: 20 rollout steps, then 1e-6).

    Args:
        step: 0-based step.
        peak: learning rate after the warm-up.
        warmup_steps: steps of the warm-up; the first one already moves.
    """
    return peak * min(1.0, (step + 1) / (warmup_steps + 1))


def supervised_learning_rate(
    step: int, total: int, peak: float, warmup_fraction: float, schedule: Literal["cosine", "constant"]
) -> float:
    """Linear warm-up over a share of the steps, then cosine decay to 0 or constant (paper section 4).

    Args:
        step: 0-based step.
        total: number of steps.
        peak: learning rate after the warm-up.
        warmup_fraction: share of the steps with warm-up.
        schedule: what follows.
    """
    warmup = math.ceil(total * warmup_fraction)
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    if schedule == "constant":
        return peak
    progress = (step - warmup) / max(1, total - warmup)
    return peak * 0.5 * (1.0 + math.cos(math.pi * progress))
