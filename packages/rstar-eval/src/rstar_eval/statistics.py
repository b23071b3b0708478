"""pass@1 and its uncertainty: estimates, intervals and shares. Pure functions, no input or output.

pass@1 is the mean over problems of the share of a problem's samples that are right. Samples of one
problem are not independent of each other, so the problem is the unit of uncertainty:

- one sample per problem: the Wilson score interval of a proportion (E. B. Wilson, JASA 22, 1927);
- several: a percentile bootstrap that draws whole problems (B. Efron, Ann. Statist. 7, 1979).

The bootstrap is blind where every problem has the same rate (all right, or all wrong): it would
report no uncertainty at all. There the Wilson interval over problems is taken instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

import numpy as np

__all__ = ["Estimate", "cluster_bootstrap_interval", "pass_at_1", "share", "wilson_interval"]

_BLOCK_DRAWS = 2_000_000  # of problem indices held at once: 16 MB


@dataclass(frozen=True)
class Estimate:
    """A mean with its confidence interval.

    `mean`, `low` and `high` lie in [0, 1] and are None when nothing was measured. `problems` and
    `samples` are the counts that entered; `method` is "wilson", "cluster_bootstrap" or "none".
    """

    mean: float | None
    low: float | None
    high: float | None
    problems: int
    samples: int
    method: str
    confidence: float = 0.95

    @property
    def interval(self) -> list[float] | None:
        """`[low, high]`, or None when nothing was measured."""
        return None if self.low is None or self.high is None else [self.low, self.high]

    def to_json_dict(self) -> dict[str, Any]:
        """The fields as JSON values."""
        return asdict(self)

    def __str__(self) -> str:
        if self.mean is None or self.low is None or self.high is None:
            return "-"
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}]"


def pass_at_1(
    successes: Sequence[Sequence[bool]],
    *,
    confidence: float = 0.95,
    seed: int = 0,
    resamples: int = 10_000,
) -> Estimate:
    """Estimates pass@1 from the outcomes of every problem's samples.

    Args:
        successes: for each problem, whether each of its samples is right. Each problem is divided
            by the samples it really has; a problem without any is left out.
        confidence: coverage of the interval, between 0 and 1.
        seed: of the bootstrap; the same input and seed give the same interval.
        resamples: bootstrap draws.

    Raises:
        ValueError: for a confidence outside (0, 1) or fewer than one resample.
    """
    _check_confidence(confidence)
    present = [problem for problem in successes if len(problem) > 0]
    samples = sum(len(problem) for problem in present)
    if not present:
        return Estimate(None, None, None, 0, 0, "none", confidence)
    rates = [sum(map(bool, problem)) / len(problem) for problem in present]
    mean = sum(rates) / len(rates)
    if samples == len(present) or min(rates) == max(rates):
        low, high = wilson_interval(mean * len(rates), len(rates), confidence=confidence)
        method = "wilson"
    else:
        low, high = cluster_bootstrap_interval(rates, confidence=confidence, seed=seed, resamples=resamples)
        method = "cluster_bootstrap"
    return Estimate(mean, low, high, len(present), samples, method, confidence)


def wilson_interval(successes: float, total: int, *, confidence: float = 0.95) -> tuple[float, float]:
    """The Wilson score interval of a proportion.

    Args:
        successes: between 0 and `total`; may be fractional (a mean rate times a count).
        total: trials, at least 1.
        confidence: coverage, between 0 and 1.

    Raises:
        ValueError: for counts or a confidence out of range.
    """
    _check_confidence(confidence)
    if total < 1 or not -1e-9 <= successes <= total + 1e-9:
        raise ValueError(f"not a count of successes: {successes} of {total}")
    p = min(1.0, max(0.0, successes / total))
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    spread = z * z / total
    centre = (p + spread / 2) / (1 + spread)
    half = z * ((p * (1 - p) + spread / 4) / total) ** 0.5 / (1 + spread)
    # At 0 and 1 the bound is exact; rounding must not push the estimate out of its interval.
    return max(0.0, min(p, centre - half)), min(1.0, max(p, centre + half))


def cluster_bootstrap_interval(
    rates: Sequence[float], *, confidence: float = 0.95, seed: int = 0, resamples: int = 10_000
) -> tuple[float, float]:
    """The percentile bootstrap interval of the mean of per-problem rates, drawing whole problems.

    Args:
        rates: one success rate per problem, each in [0, 1]; at least one.
        confidence: coverage, between 0 and 1.
        seed: of the draws.
        resamples: how often all problems are drawn anew.

    Raises:
        ValueError: for no rates, fewer than one resample, or a confidence out of range.
    """
    _check_confidence(confidence)
    if not rates or resamples < 1:
        raise ValueError("a bootstrap needs at least one problem and one resample")
    values = np.asarray(rates, dtype=np.float64)
    random = np.random.default_rng(seed)
    block = max(1, _BLOCK_DRAWS // len(values))
    means = np.empty(resamples, dtype=np.float64)
    for start in range(0, resamples, block):
        stop = min(start + block, resamples)
        drawn = random.integers(0, len(values), size=(stop - start, len(values)))
        means[start:stop] = values[drawn].mean(axis=1)
    tail = (1 - confidence) / 2
    low, high = np.quantile(means, [tail, 1 - tail])
    mean = float(values.mean())
    return max(0.0, min(mean, float(low))), min(1.0, max(mean, float(high)))


def share(part: int, whole: int) -> float | None:
    """`part / whole`, or None where there is nothing to divide by: an unknown share is not 0."""
    return part / whole if whole else None


def _check_confidence(confidence: float) -> None:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, not {confidence}")
