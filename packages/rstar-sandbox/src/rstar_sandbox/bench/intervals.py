"""Means with their 95 % interval over rounds (Student's t), and quantiles."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Mean", "quantile"]

# Two-sided 95 %, by degrees of freedom.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
_T_MANY = 2.0


@dataclass(frozen=True)
class Mean:
    """A mean over rounds and half the width of its 95 % interval."""

    value: float
    half_width: float

    @classmethod
    def of(cls, rounds: Sequence[float]) -> Mean:
        """Of one number a round; a single round has no interval (nan)."""
        if not rounds:
            return cls(math.nan, math.nan)
        if len(rounds) == 1:
            return cls(rounds[0], math.nan)
        freedom = len(rounds) - 1
        t = _T[freedom - 1] if freedom <= len(_T) else _T_MANY
        return cls(statistics.fmean(rounds), t * statistics.stdev(rounds) / math.sqrt(len(rounds)))

    def __str__(self) -> str:
        digits = 0 if abs(self.value) >= 100 else 1 if abs(self.value) >= 10 else 2
        width = "" if math.isnan(self.half_width) else f" ±{self.half_width:.{digits}f}"
        return f"{self.value:.{digits}f}{width}"


def quantile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of them does not exceed; nan of none."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, math.ceil(share * len(ordered)) - 1))]
