"""The command's work: scenarios from a preset or from recorded trajectories, progress, table."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from rstar_model.trajectory import read_trajectories
from rstar_protos.errors import UserInputError
from rstar_rollout.simulator.presets import PRESETS, Scenario
from rstar_rollout.simulator.recorded import fit_workload
from rstar_rollout.simulator.report import (
    POLICY_NAMES,
    ScenarioReport,
    check_policies,
    run_scenario,
    write_json,
    write_plot,
)

__all__ = ["SimulateJob", "run_job"]


@dataclass(frozen=True)
class SimulateJob:
    """What to simulate and where to put it. ``layouts`` such as ``tp1``, ``limits`` in tokens; empty: all."""

    preset: str = "paper-64gpu"
    layouts: tuple[str, ...] = ()
    limits: tuple[int, ...] = ()
    policies: tuple[str, ...] = POLICY_NAMES
    seed: int = 1
    kv_share: float | None = None
    """Scales the preset's KV cache; None: as it is."""
    trajectories: Path | None = None
    """Recorded rollouts whose lengths, turns and latencies take the place of the preset's."""
    json: Path | None = None
    plot: Path | None = None


def run_job(job: SimulateJob) -> list[ScenarioReport]:
    """Simulate, print the tables, write what was asked for.

    Raises:
        UserInputError: an unknown preset, layout, limit or policy, or trajectories that cannot be used.
    """
    scenarios = _scenarios(job)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    reports: list[ScenarioReport] = []
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    with bar:
        task = bar.add_task("simulating", total=1)
        for scenario in scenarios:
            report = run_scenario(
                scenario,
                job.seed,
                job.policies,
                lambda what, done, total: bar.update(task, description=what, completed=done, total=total),
            )
            reports.append(report)
            _print(console, report)
    if job.json is not None:
        write_json(job.json, reports, job.seed)
    if job.plot is not None:
        write_plot(job.plot, reports)
    return reports


def _scenarios(job: SimulateJob) -> Sequence[Scenario]:
    check_policies(job.policies)
    if job.preset not in PRESETS:
        raise UserInputError("--preset", job.preset, "one of " + ", ".join(PRESETS))
    scenarios = PRESETS[job.preset]()
    layouts = {scenario.layout for scenario in scenarios}
    limits = {scenario.workload.max_response_tokens for scenario in scenarios}
    for layout in job.layouts:
        if layout not in layouts:
            raise UserInputError("--layout", layout, "one of " + ", ".join(sorted(layouts)))
    for limit in job.limits:
        if limit not in limits:
            raise UserInputError("--limit", limit, "one of " + ", ".join(map(str, sorted(limits))))
    if job.kv_share is not None and not 0 < job.kv_share <= 1:
        raise UserInputError("--kv-share", job.kv_share, "a number above 0, at most 1")
    chosen = [
        scenario
        for scenario in scenarios
        if (not job.layouts or scenario.layout in job.layouts)
        and (not job.limits or scenario.workload.max_response_tokens in job.limits)
    ]
    if job.kv_share is not None:
        share = job.kv_share
        chosen = [replace(s, cluster=replace(s.cluster, kv_tokens=int(s.cluster.kv_tokens * share))) for s in chosen]
    if job.trajectories is not None:
        chosen = [_fitted(scenario, job.trajectories) for scenario in chosen]
    return chosen


def _fitted(scenario: Scenario, path: Path) -> Scenario:
    if not path.is_file():
        raise UserInputError("--trajectories", str(path), "an existing JSONL file of trajectories")
    shape = scenario.workload
    fitted = fit_workload(
        list(read_trajectories(path)),
        problems=shape.problems,
        samples=shape.samples,
        max_response_tokens=shape.max_response_tokens,
        max_turns=shape.max_turns,
    )
    return replace(scenario, workload=fitted)


def _print(console: Console, report: ScenarioReport) -> None:
    table = Table(
        title=f"{report.scenario.name}: {report.rollouts} rollouts, mean {report.mean_response_tokens:.0f} tokens, "
        f"{report.truncated_share:.1%} truncated",
        title_justify="left",
    )
    for name in ("policy", "step s", "of floor", "idle", "recomputed", "evicted", "peak KV", "tokens/s"):
        table.add_column(name, justify="left" if name == "policy" else "right")
    for outcome in report.outcomes:
        table.add_row(
            outcome.policy,
            f"{outcome.step_time_s:.1f}",
            f"{outcome.step_time_s / report.floor_s:.3f}",
            f"{outcome.idle_share:.1%}",
            f"{outcome.recomputed_tokens:,}",
            f"{outcome.evictions:,}",
            f"{outcome.peak_kv_share:.1%}",
            f"{outcome.tokens_per_s:,.0f}",
        )
    console.print(table)
    console.print(
        f"floor {report.floor_s:.1f} s = the larger of all work at the slot cap {report.lower_bound_s:.1f} s "
        f"and the longest rollout alone {report.longest_rollout_s:.1f} s; "
        f"with what the KV cache holds on average in place of the slot cap {report.kv_bound_s:.1f} s, with the decode "
        f"steps that a rollout of the greatest length takes {report.serial_bound_s:.1f} s\n"
    )
