"""What no schedule can beat: the work at the slot cap over all engines, and the longest rollout alone.

The first asks that every engine run with all its slots filled from beginning to end, whatever the KV cache holds; the
second that the longest rollout find an engine of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from rstar_rollout.simulator.speed import SpeedCurve
from rstar_rollout.simulator.workload import SimulatedRollout

__all__ = ["kv_bound_seconds", "longest_rollout_seconds", "lower_bound_seconds", "serial_bound_seconds"]


def _reads(rollout: SimulatedRollout) -> int:
    """Context tokens read over all decode steps of a rollout."""
    context, reads = rollout.prompt_tokens, 0
    for turn in rollout.turns:
        reads += turn.tokens * context + turn.tokens * (turn.tokens - 1) // 2
        context += turn.tokens + turn.tool_tokens
    return reads


def _prefill(rollouts: Sequence[SimulatedRollout]) -> int:
    """Tokens that have to be computed as input: each group's prompt once, and every tool result."""
    prompts = {rollout.group_id: rollout.prompt_tokens for rollout in rollouts}
    return sum(prompts.values()) + sum(turn.tool_tokens for rollout in rollouts for turn in rollout.turns)


def lower_bound_seconds(rollouts: Sequence[SimulatedRollout], speed: SpeedCurve, engines: int, slots: float) -> float:
    """All work done with ``slots`` sequences in every decode step of every engine."""
    tokens = sum(rollout.policy_tokens for rollout in rollouts)
    reads = sum(_reads(rollout) for rollout in rollouts)
    slots = min(slots, len(rollouts) / engines)
    work = tokens * (speed.a / slots + speed.b) + speed.c * reads + speed.prefill * _prefill(rollouts)
    return work / engines


def serial_bound_seconds(rollouts: Sequence[SimulatedRollout], speed: SpeedCurve, engines: int, slots: float) -> float:
    """The lower bound for engines that each have a rollout of the greatest length.

    A rollout's tokens come one after another, so such an engine runs at least as many decode steps, each of which
    costs ``a``, however few sequences are left in it. Where a tenth of the rollouts reach the limit every engine has
    some. (Not a bound for engines that are spared them.)
    """
    steps = sum(rollout.policy_tokens for rollout in rollouts) / engines / min(slots, len(rollouts) / engines)
    longest = max(rollout.policy_tokens for rollout in rollouts)
    return lower_bound_seconds(rollouts, speed, engines, slots) + speed.a * max(0.0, longest - steps)


def kv_bound_seconds(
    rollouts: Sequence[SimulatedRollout], speed: SpeedCurve, engines: int, slots: int, kv_tokens: int
) -> float:
    """The same with no more sequences than the KV cache holds at the rollouts' mean length while they run."""
    tokens = sum(rollout.policy_tokens for rollout in rollouts)
    mean = sum(_reads(rollout) for rollout in rollouts) / max(tokens, 1)
    return lower_bound_seconds(rollouts, speed, engines, min(slots, kv_tokens / mean))


def longest_rollout_seconds(rollouts: Sequence[SimulatedRollout], speed: SpeedCurve) -> float:
    """The slowest rollout with an engine to itself, tools included."""
    longest = 0.0
    for rollout in rollouts:
        prefill = rollout.prompt_tokens + sum(turn.tool_tokens for turn in rollout.turns)
        seconds = rollout.policy_tokens * (speed.a + speed.b) + speed.c * _reads(rollout) + prefill * speed.prefill
        longest = max(longest, seconds + sum(turn.tool_seconds for turn in rollout.turns))
    return longest
