"""From recorded trajectories to a workload: replayed as they were, or as distributions fitted to them."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence

from rstar_model.trajectory import Trajectory
from rstar_model.types import EndReason, SpanKind
from rstar_protos.errors import UserInputError
from rstar_rollout.simulator.workload import Lognormal, SimulatedRollout, Turn, WorkloadShape

__all__ = ["fit_workload", "replay"]

_LEFT_OUT = (EndReason.CANCELLED, EndReason.INFRASTRUCTURE)


def replay(trajectories: Iterable[Trajectory], max_new_tokens: int) -> list[SimulatedRollout]:
    """The recorded rollouts themselves, cancelled and failed ones left out.

    Args:
        trajectories: recorded.
        max_new_tokens: limit that the scheduler was given, tokens after the prompt.
    """
    return [_replayed(trajectory, max_new_tokens) for trajectory in trajectories if _usable(trajectory)]


def _usable(trajectory: Trajectory) -> bool:
    return trajectory.end_reason not in _LEFT_OUT and trajectory.policy_tokens > 0


def _replayed(trajectory: Trajectory, max_new_tokens: int) -> SimulatedRollout:
    written: dict[int, int] = defaultdict(int)
    between: dict[int, int] = defaultdict(int)
    prompt = 0
    for span in trajectory.ledger.spans:
        if span.kind is SpanKind.POLICY:
            written[span.turn] += len(span.token_ids)
        elif not written:
            prompt += len(span.token_ids)
        else:
            between[span.turn] += len(span.token_ids)
    # Calls of one turn run at once: the slowest one is waited for.
    waits: dict[int, float] = defaultdict(float)
    for call in trajectory.tool_calls:
        waits[call.turn] = max(waits[call.turn], call.wall_seconds + call.queue_seconds)
    turns = tuple(Turn(written[turn], waits[turn], between[turn]) for turn in sorted(written))
    return SimulatedRollout(trajectory.trajectory_id, trajectory.group_id, prompt, max_new_tokens, turns)


def fit_workload(
    trajectories: Sequence[Trajectory],
    *,
    problems: int,
    samples: int,
    max_response_tokens: int,
    max_turns: int,
) -> WorkloadShape:
    """Distributions like those of recorded trajectories, for a step of any size.

    Lengths are log-normal with the recorded quartiles below the limits, where truncation cannot bend them.

    Raises:
        UserInputError: fewer than 8 usable trajectories.
    """
    rollouts = replay(trajectories, max_response_tokens)
    if len(rollouts) < 8:
        raise UserInputError("--trajectories", f"{len(rollouts)} usable rollouts", "at least 8")
    lengths = sorted(rollout.response_tokens for rollout in rollouts)
    quarter, half = lengths[len(lengths) // 4], lengths[len(lengths) // 2]
    sigma = max(0.05, (math.log(max(half, 2)) - math.log(max(quarter, 1))) / 0.6745)
    return WorkloadShape(
        problems=problems,
        samples=samples,
        prompt=_lognormal([rollout.prompt_tokens for rollout in rollouts]),
        response=Lognormal(float(half), sigma),
        group_share=_group_share(rollouts),
        calls=statistics.fmean(len(rollout.turns) - 1 for rollout in rollouts),
        tool_tokens=_lognormal([turn.tool_tokens for rollout in rollouts for turn in rollout.turns[:-1]]),
        tool_seconds=_lognormal([turn.tool_seconds for rollout in rollouts for turn in rollout.turns[:-1]]),
        max_response_tokens=max_response_tokens,
        max_turns=max_turns,
    )


def _lognormal(values: Sequence[float]) -> Lognormal:
    logs = [math.log(value) for value in values if value > 0]
    if not logs:
        return Lognormal(1e-3, 0.0)
    return Lognormal(math.exp(statistics.fmean(logs)), statistics.pstdev(logs))


def _group_share(rollouts: Sequence[SimulatedRollout]) -> float:
    """Share of the variance of log lengths that lies between groups (analysis of variance, one way)."""
    groups: dict[str, list[float]] = defaultdict(list)
    for rollout in rollouts:
        groups[rollout.group_id].append(math.log(max(rollout.response_tokens, 1)))
    several = [values for values in groups.values() if len(values) > 1]
    if len(several) < 2:
        return 0.5
    within = statistics.fmean(statistics.variance(values) for values in several)
    size = statistics.fmean(len(values) for values in several)
    between = statistics.variance([statistics.fmean(values) for values in several]) - within / size
    return min(1.0, max(0.0, between / (between + within))) if between + within > 0 else 0.0
