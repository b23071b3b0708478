"""`rstar-rollout simulate`: run the policies over scenarios, and tell what came of it as a table, JSON and a plot."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rstar_protos.errors import UserInputError
from rstar_rollout.scheduler.lengths import LengthModel
from rstar_rollout.scheduler.longest_first import LongestFirst
from rstar_rollout.scheduler.policies import Policy
from rstar_rollout.scheduler.registry import make_policy
from rstar_rollout.simulator.bounds import (
    kv_bound_seconds,
    longest_rollout_seconds,
    lower_bound_seconds,
    serial_bound_seconds,
)
from rstar_rollout.simulator.oracle import OraclePolicy
from rstar_rollout.simulator.presets import Scenario
from rstar_rollout.simulator.run import PolicyOutcome, simulate
from rstar_rollout.simulator.workload import SimulatedRollout, draw_workload

__all__ = ["POLICY_NAMES", "ScenarioReport", "check_policies", "run_scenario", "to_json", "write_json", "write_plot"]

POLICY_NAMES = ("static", "least_in_flight", "kv_balanced", "kv_learned", "oracle")


@dataclass(frozen=True)
class ScenarioReport:
    """What the policies made of one scenario. Bounds in seconds, see `simulator.bounds`."""

    scenario: Scenario
    outcomes: tuple[PolicyOutcome, ...]
    lower_bound_s: float
    kv_bound_s: float
    serial_bound_s: float
    longest_rollout_s: float
    rollouts: int
    mean_response_tokens: float
    truncated_share: float

    @property
    def floor_s(self) -> float:
        """What no policy can be faster than."""
        return max(self.lower_bound_s, self.longest_rollout_s)


def check_policies(names: Sequence[str]) -> None:
    """Refuses the name of a policy that there is not.

    Raises:
        UserInputError: no such policy.
    """
    for name in names:
        if name not in POLICY_NAMES:
            raise UserInputError("--policy", name, "one of " + ", ".join(POLICY_NAMES))


def run_scenario(
    scenario: Scenario,
    seed: int,
    policies: Sequence[str] = POLICY_NAMES,
    on_progress: Callable[[str, int, int], None] | None = None,
) -> ScenarioReport:
    """Run the policies over the same rollouts.

    ``kv_learned`` is given the lengths of one earlier step of the same distributions, as in the second step of a run.

    Raises:
        UserInputError: no such policy.
    """
    check_policies(policies)
    rollouts = draw_workload(scenario.workload, seed)
    cluster = scenario.cluster
    outcomes = []
    for name in policies:
        policy = _policy(name, rollouts, scenario, seed)
        report = None if on_progress is None else _reporter(on_progress, f"{scenario.name} {name}")
        outcomes.append(simulate(rollouts, cluster, policy, report))
    bounds = (rollouts, cluster.speed, cluster.engines, cluster.slots)
    lengths = [rollout.response_tokens for rollout in rollouts]
    return ScenarioReport(
        scenario=scenario,
        outcomes=tuple(outcomes),
        lower_bound_s=lower_bound_seconds(*bounds),
        kv_bound_s=kv_bound_seconds(*bounds, cluster.kv_tokens),
        serial_bound_s=serial_bound_seconds(*bounds),
        longest_rollout_s=longest_rollout_seconds(rollouts, cluster.speed),
        rollouts=len(rollouts),
        mean_response_tokens=sum(lengths) / len(lengths),
        truncated_share=sum(length >= scenario.workload.max_response_tokens for length in lengths) / len(lengths),
    )


def _reporter(on_progress: Callable[[str, int, int], None], what: str) -> Callable[[int, int], None]:
    return lambda done, total: on_progress(what, done, total)


def _policy(name: str, rollouts: Sequence[SimulatedRollout], scenario: Scenario, seed: int) -> Policy:
    if name == "oracle":
        return OraclePolicy({rollout.rollout_id: rollout.response_tokens for rollout in rollouts})
    if name == "kv_learned":
        lengths = LengthModel()
        for rollout in draw_workload(scenario.workload, seed + 1_000_003):
            lengths.add(rollout.response_tokens, rollout.max_new_tokens)
        lengths.next_step()
        return LongestFirst(lengths)
    return make_policy(name)


def _scenario_json(report: ScenarioReport) -> dict[str, Any]:
    return {
        "policies": {
            outcome.policy: {
                "step_time_s": outcome.step_time_s,
                "idle_share": outcome.idle_share,
                "recomputed_tokens": outcome.recomputed_tokens,
                "evictions": outcome.evictions,
                "peak_kv_share": outcome.peak_kv_share,
                "tokens_per_s": outcome.tokens_per_s,
            }
            for outcome in report.outcomes
        },
        "lower_bound_s": report.lower_bound_s,
        "longest_rollout_s": report.longest_rollout_s,
        "kv_bound_s": report.kv_bound_s,
        "serial_bound_s": report.serial_bound_s,
        "rollouts": report.rollouts,
        "mean_response_tokens": report.mean_response_tokens,
        "truncated_share": report.truncated_share,
    }


def to_json(reports: Sequence[ScenarioReport], seed: int) -> Mapping[str, Any]:
    """The first scenario at the top level, and all of them by name under ``scenarios``."""
    return {
        "scenario": reports[0].scenario.name,
        "seed": seed,
        **_scenario_json(reports[0]),
        "scenarios": {report.scenario.name: _scenario_json(report) for report in reports},
    }


def write_json(path: Path, reports: Sequence[ScenarioReport], seed: int) -> None:
    """`to_json` into a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(to_json(reports, seed), indent=2) + "\n", encoding="utf-8")


def write_plot(path: Path, reports: Sequence[ScenarioReport]) -> None:
    """Step times beside their bounds, and how many rollouts have ended over time: one row for each scenario.

    Raises:
        UserInputError: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UserInputError(
            "--plot", str(path), "an installed matplotlib (pip install 'rstar-rollout[plot]')"
        ) from error
    figure = Figure(figsize=(12, 3.2 * len(reports)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(reports), 2, squeeze=False)
    for (bars, curves), report in zip(axes, reports, strict=True):
        names = [outcome.policy for outcome in report.outcomes]
        colours = [f"C{index}" for index in range(len(names))]
        bars.barh(names, [outcome.step_time_s for outcome in report.outcomes], color=colours)
        for outcome in report.outcomes:
            note = f" idle {outcome.idle_share:.0%}"
            note += f", {outcome.recomputed_tokens / 1e6:.1f}M recomputed" if outcome.recomputed_tokens else ""
            bars.text(outcome.step_time_s, outcome.policy, note, va="center", fontsize=8)
        bars.axvline(report.lower_bound_s, color="black", linestyle="--", linewidth=1, label="work at the slot cap")
        bars.axvline(report.longest_rollout_s, color="black", linestyle=":", linewidth=1, label="longest rollout alone")
        bars.set(title=report.scenario.name, xlabel="step, seconds")
        bars.set_xlim(0, 1.45 * max(outcome.step_time_s for outcome in report.outcomes))
        bars.invert_yaxis()
        bars.legend(fontsize=7)
        for outcome, colour in zip(report.outcomes, colours, strict=True):
            seconds, ended = zip(*outcome.timeline, strict=True)
            curves.plot(seconds, ended, color=colour, label=outcome.policy)
        curves.set(xlabel="seconds", ylabel="rollouts ended")
        curves.legend(fontsize=7)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
