"""pass@1 with intervals as a picture: evaluations side by side, and their tags."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rstar_eval.report import PartSummary, Report

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_reports"]


def plot_reports(reports: Sequence[Report], path: Path) -> None:
    """Draws one bar group per part (all, then each tag) with one bar per evaluation.

    Args:
        reports: at least one.
        path: picture file; its ending names the format.
    """
    from matplotlib.figure import Figure

    tags = sorted({tag for report in reports for tag in report.by_tag})
    names = ["all", *tags]
    width = 0.8 / len(reports)
    figure = Figure(figsize=(max(5.0, 1.1 * len(names) + 2.5), 4.0), layout="constrained")
    axes = figure.add_subplot()
    for offset, report in enumerate(reports):
        parts = {"all": report.overall, **report.by_tag}
        shown = [(place, parts[name]) for place, name in enumerate(names) if name in parts]
        _bars(
            axes, [(place + offset * width, part) for place, part in shown], width, report.name or f"run {offset + 1}"
        )
    axes.set_xticks([place + 0.4 - width / 2 for place in range(len(names))], names, rotation=30, ha="right")
    axes.set_ylim(0, 1)
    axes.set_ylabel("pass@1 (95 % interval)")
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def _bars(axes: Axes, places: Sequence[tuple[float, PartSummary]], width: float, label: str) -> None:
    known = [(x, part.pass_at_1) for x, part in places if part.pass_at_1.mean is not None]
    means = [score.mean or 0.0 for _, score in known]
    below = [mean - (score.low or 0.0) for mean, (_, score) in zip(means, known, strict=True)]
    above = [(score.high or 0.0) - mean for mean, (_, score) in zip(means, known, strict=True)]
    axes.bar([x for x, _ in known], means, width, yerr=[below, above], capsize=3, label=label)
