"""Reports as tables for people: one row per evaluation, then one row per tag."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from rstar_eval.report import PartSummary, Report

__all__ = ["figure_text", "report_table", "tag_table", "warnings"]

_FIGURES = (
    "pass@1",
    "95 % interval",
    "problems",
    "samples",
    "finished",
    "cut",
    "tool use",
    "tool errors",
    "tokens",
    "turns",
)


def report_table(reports: Sequence[Report]) -> Table:
    """One row per evaluation, with the sampling settings beside each score."""
    table = _table("evaluation", "temperature", "tools")
    for report in reports:
        settings = report.settings
        tools = "on" if settings.tools_enabled else "off"
        table.add_row(report.name or "-", f"{settings.temperature:g}", tools, *_figures(report.overall))
    return table


def tag_table(report: Report) -> Table:
    """One row per tag of one evaluation."""
    table = _table("tag")
    for tag, part in report.by_tag.items():
        table.add_row(tag, *_figures(part))
    return table


def warnings(report: Report) -> list[str]:
    """What a reader must know before trusting the score; empty when there is nothing."""
    part, found = report.overall, []
    if report.missing:
        found.append(f"{report.missing} samples of {len(report.short_problems)} problems are missing")
    bad_gold = part.statuses.get("bad_gold", 0)
    if bad_gold:
        found.append(f"{bad_gold} samples left out: their gold answer is unusable")
    if part.excluded > bad_gold:
        found.append(f"{part.excluded - bad_gold} samples left out: lost to infrastructure")
    if part.truncation_share and part.truncation_share >= 0.1:
        score = part.pass_at_1_finished
        found.append(f"{part.truncation_share:.0%} of the samples were cut at the token limit; finished ones: {score}")
    if part.answer_not_extracted:
        found.append(f"{part.answer_not_extracted} samples hold an answer that was not read")
    return found


def _table(*leading: str) -> Table:
    table = Table(header_style="bold")
    for name in leading:
        table.add_column(name, overflow="fold")
    for name in _FIGURES:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _figures(part: PartSummary) -> list[str]:
    score = part.pass_at_1
    interval = "-" if score.low is None else f"{score.low:.3f} - {score.high:.3f}"
    return [
        figure_text(score.mean, ".3f"),
        interval,
        str(score.problems),
        str(part.scored),
        figure_text(part.finished_share, ".0%"),
        figure_text(part.truncation_share, ".0%"),
        figure_text(part.tool_call_share, ".0%"),
        figure_text(part.tool_error_share, ".1%"),
        figure_text(part.mean_response_tokens, ".0f"),
        figure_text(part.mean_turns, ".1f"),
    ]


def figure_text(value: float | None, form: str) -> str:
    """A figure as tables show it; a dash where there is none."""
    return "-" if value is None else format(value, form)
