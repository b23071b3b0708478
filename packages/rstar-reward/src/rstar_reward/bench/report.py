"""The figures of a bench as a table and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from rstar_protos.errors import UserInputError
from rstar_reward.bench.figures import Figure, measure
from rstar_reward.bench.workloads import WORKLOADS

__all__ = ["print_figures"]

_HEADINGS = ("workload", "grader", "pairs", "agree with label", "CPU s", "per CPU s", "own process only")


def print_figures(
    workloads: Sequence[str],
    count: int,
    seed: int,
    workers: int,
    reference: str | None,
    budget_seconds: float,
    out: Path | None,
) -> None:
    """Measures and prints.

    Raises:
        UserInputError: unknown workload, a reference that cannot be imported, or a file that cannot be written.
    """
    for workload in workloads:
        if workload not in WORKLOADS:
            raise UserInputError("--workload", workload, f"one of {', '.join(WORKLOADS)}")
    console = Console()
    # Where there is no terminal, a figure must not be cut off.
    console.width = max(console.width, 120)
    table = Table(*_HEADINGS, title=f"verdicts per CPU-second, seed {seed}, {workers} workers")
    figures: list[Figure] = []
    for workload in workloads:
        with Console(stderr=True).status(f"measuring {workload}"):
            for figure in measure(workload, count, seed, workers, reference, budget_seconds):
                figures.append(figure)
                table.add_row(*_cells(figure))
        table.add_section()
    console.print(table)
    if reference:
        for workload in workloads:
            ours, theirs = (_find(figures, workload, grader) for grader in ("rstar-reward", reference))
            own = theirs.graded / max(theirs.own_cpu_seconds, 1e-9)
            console.print(
                f"{workload}: {ours.rate / theirs.rate:.1f} x the reference, {ours.rate / own:.1f} x without its forks"
            )
    if out is not None:
        try:
            out.write_text(json.dumps([{**asdict(figure), "rate": figure.rate} for figure in figures], indent=1) + "\n")
        except OSError as error:
            raise UserInputError("--out", str(out), f"a file that can be written ({error.strerror})") from error


def _cells(figure: Figure) -> tuple[str, ...]:
    own = figure.graded / max(figure.own_cpu_seconds, 1e-9)
    share = f"{100 * figure.agreed / figure.graded:.1f} %"
    return (
        figure.workload,
        figure.grader,
        str(figure.graded),
        share,
        f"{figure.cpu_seconds:.2f}",
        f"{figure.rate:.0f}",
        f"{own:.0f}",
    )


def _find(figures: Sequence[Figure], workload: str, grader: str) -> Figure:
    return next(figure for figure in figures if (figure.workload, figure.grader) == (workload, grader))
