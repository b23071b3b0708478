"""The curves of a run as one PNG: training figures step by step, held-out pass@1 with its intervals."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from rstar_trainer.metrics_log import Record

__all__ = ["CURVES_FILE", "draw_curves"]

CURVES_FILE = "curves.png"

# Title, and the metrics (name, label) drawn into the panel.
_PANELS: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    ("Reward in training", (("reward", "mean reward of all rollouts"),)),
    (
        "Shares of rollouts and tool calls",
        (("tool_error_share", "failed tool calls"), ("truncation_share", "truncated rollouts")),
    ),
    ("Response length, tokens", (("response_tokens", "mean"),)),
    ("Groups per step", (("groups_kept", "kept"), ("groups_rejected", "rejected: equal rewards"))),
    (
        "Speed, tokens/s",
        (("rollout_tokens_per_second", "rollout"), ("train_tokens_per_second", "training")),
    ),
)
_COLOURS = ("#1f5fa8", "#d1495b")


def draw_curves(records: Sequence[Record], entries: Sequence[Mapping[str, Any]], path: Path) -> Path:
    """Draws held-out pass@1 by entry and the training metrics by RL step.

    Args:
        records: the run's log; records of kind "rl" are drawn.
        entries: the entries of the report.
        path: the PNG to write.
    """
    # The object interface with the Agg canvas needs no display and leaves pyplot's global state alone.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    steps = [record for record in records if record.kind == "rl"]
    figure = Figure(figsize=(13, 7), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 3).flatten()
    _draw_heldout(axes[0], entries)
    for axis, (title, metrics) in zip(axes[1:], _PANELS, strict=True):
        axis.set_title(title, fontsize=11)
        for (name, label), colour in zip(metrics, _COLOURS, strict=False):
            values = [record.values.get(name, math.nan) for record in steps]
            axis.plot(range(1, len(steps) + 1), values, "o-", markersize=3, color=colour, label=label)
        if len(metrics) > 1:
            axis.legend(fontsize=8, frameon=False)
        axis.margins(y=0.15)
        axis.set_xlabel("RL step")
        axis.set_xlim(0.5, max(1, len(steps)) + 0.5)
        axis.set_ylim(bottom=0, top=1 if "reward" in metrics[0][0] or "share" in metrics[0][0] else None)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        _mark_stages(axis, steps)
    for axis in axes:
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    partial = path.with_suffix(".partial.png")
    figure.savefig(partial, dpi=120)
    partial.replace(path)
    return path


def _draw_heldout(axis: Any, entries: Sequence[Mapping[str, Any]]) -> None:
    axis.set_title("Held-out pass@1, 95 % interval", fontsize=11)
    measured = [entry for entry in entries if entry.get("pass_at_1") is not None]
    positions = range(len(measured))
    means = [entry["pass_at_1"] for entry in measured]
    below = [max(0.0, entry["pass_at_1"] - entry["ci95"][0]) for entry in measured]
    above = [max(0.0, entry["ci95"][1] - entry["pass_at_1"]) for entry in measured]
    axis.errorbar(positions, means, yerr=[below, above], fmt="o-", capsize=4, color=_COLOURS[0])
    for position, mean in zip(positions, means, strict=True):
        axis.annotate(f"{mean:.2f}", (position, mean), xytext=(7, -3), textcoords="offset points", fontsize=9)
    axis.set_xticks(list(positions), [entry["name"] for entry in measured])
    axis.margins(x=0.12)
    axis.set_ylim(0, 1)


def _mark_stages(axis: Any, steps: Sequence[Record]) -> None:
    """A dotted line where one stage ends and the next begins, and each stage's name at its first step."""
    starts = [0, *(i for i, (a, b) in enumerate(pairwise(steps), start=1) if a.stage != b.stage)]
    for start in starts if steps else []:
        if start:
            axis.axvline(start + 0.5, color="grey", linestyle=":", linewidth=1)
        axis.annotate(
            steps[start].stage,
            (start + (0.6 if start else 1), 0.98),
            xycoords=("data", "axes fraction"),
            fontsize=8,
            color="grey",
            va="top",
        )
