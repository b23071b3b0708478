"""What a run prints at its end: the table stage by stage, and where everything lies."""

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.table import Table

from rstar_eval.table import figure_text
from rstar_trainer.report import RunReport

__all__ = ["print_summary", "results_table"]


def results_table(report: RunReport) -> Table:
    """One row per evaluation, as in the paper's table: RL steps so far and held-out pass@1."""
    table = Table(title=f"{report.values.get('recipe', 'run')}, seed {report.values.get('seed', '?')}")
    table.add_column("after")
    for heading in ("RL steps", "pass@1", "95 % interval", "problems", "tool calls", "tool errors"):
        table.add_column(heading, justify="right")
    for heading in ("truncated", "tokens", "turns"):
        table.add_column(heading, justify="right")
    for entry in report.stages:
        table.add_row(*_row(str(entry["name"]), entry))
    last = report.stages[-1] if report.stages else {}
    for tag, part in last.get("unseen", {}).items():
        name = f"{last['name']}, {tag.replace('_', ' ')}"
        table.add_row(*_row(name, {"rl_steps": last.get("rl_steps"), **part}), style="dim")
    disabled = report.values.get("tool_disabled")
    if disabled:
        table.add_row(*_row(f"{last.get('name', 'final')}, tool disabled", disabled), style="dim")
    return table


def print_summary(report: RunReport, console: Console) -> None:
    """Prints the table and the paths of the results."""
    console.print(results_table(report))
    for name, heading in (
        ("checkpoint", "checkpoint"),
        ("curves", "curves"),
        ("samples", "sample trajectories"),
        ("metrics", "metrics"),
        ("tensorboard", "TensorBoard"),
        ("chat_command", "talk to it"),
    ):
        if report.values.get(name):
            line = f"{heading:>20}: {report.values[name]}"
            console.print(line, markup=False, highlight=False, soft_wrap=True)


def _row(name: str, entry: Mapping[str, Any]) -> list[str]:
    interval = entry.get("ci95")
    return [
        name,
        figure_text(entry.get("rl_steps"), "d"),
        figure_text(entry.get("pass_at_1"), ".3f"),
        f"{interval[0]:.3f} - {interval[1]:.3f}" if interval else "-",
        figure_text(entry.get("problems"), "d"),
        figure_text(entry.get("tool_call_share"), ".0%"),
        figure_text(entry.get("tool_error_share"), ".0%"),
        figure_text(entry.get("truncation_share"), ".0%"),
        figure_text(entry.get("mean_response_tokens"), ".0f"),
        figure_text(entry.get("mean_turns"), ".1f"),
    ]
