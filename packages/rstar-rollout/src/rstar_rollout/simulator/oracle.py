"""A policy that knows how long every rollout will become: what any scheduler could hope for at best.

It over-commits: an engine takes a rollout if the cache never overflows given the true lengths, and the longest
rollouts go first, so that none of them is left over at the end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

from rstar_rollout.scheduler.load import EngineLoad, RolloutSpec
from rstar_rollout.scheduler.policies import KvBalanced

__all__ = ["OracleAdmission", "OraclePolicy", "true_peak"]


def true_peak(rollouts: Sequence[tuple[float, float]]) -> float:
    """Most tokens that rollouts hold at once, all growing at one pace; (length now, final length) of each."""
    held = sum(length for length, _ in rollouts)
    count = len(rollouts)
    peak, done = held, 0.0
    for left, length in sorted((max(final - length, 0.0), length) for length, final in rollouts):
        held += (left - done) * count
        done = left
        peak = max(peak, held)
        held -= length + left
        count -= 1
    return peak


class OracleAdmission:
    """Fits if the true peak does. Args: final lengths by rollout id; share of the cache that is left alone."""

    def __init__(self, lengths: Mapping[str, int], spare: float = 0.02) -> None:
        self._lengths = lengths
        self._spare = spare

    def fits(self, spec: RolloutSpec, load: EngineLoad) -> bool:
        """By the future."""
        rollouts = [(0.0, float(self._lengths[spec.rollout_id]))]
        for member in load.members.values():
            rollouts.append((member.length, float(self._lengths[member.spec.rollout_id])))
        prompts = load.prompt_tokens + (0 if load.holds_group(spec.group_id) else spec.prompt_tokens)
        rounding = load.capacity.block_tokens * (len(load.members) + 1)
        return true_peak(rollouts) + prompts + rounding <= load.capacity.kv_tokens * (1.0 - self._spare)

    def ended(self, spec: RolloutSpec, tokens: int, loads: Sequence[EngineLoad]) -> None:
        """Nothing to learn."""

    def step_ended(self) -> None:
        """Nothing to forget."""


class OraclePolicy(KvBalanced):
    """See the module text. Args: final length, tokens after the prompt, by rollout id."""

    def __init__(self, lengths: Mapping[str, int]) -> None:
        super().__init__(OracleAdmission(lengths), "oracle", group_chunk=1)
        self._lengths = lengths

    def push(self, specs: Sequence[RolloutSpec], loads: Sequence[EngineLoad]) -> None:
        """Longest first."""
        super().push(specs, loads)
        self._queue = deque(sorted(self._queue, key=lambda spec: -self._lengths.get(spec.rollout_id, 0)))
