"""Learned order and admission: groups that turn out long go first, and engines are filled by forecast.

A long rollout that begins last holds up the whole step. Nobody knows a rollout's length beforehand, but rollouts of
one problem are alike: a few of every group go first, and from how long those become (ended, or still running) the
rest of the group is put in its place, longest first. Engines are compared by the tokens that are expected of their
rollouts yet, not by the number of these.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rstar_rollout.scheduler.lengths import LengthModel
from rstar_rollout.scheduler.load import EngineLoad, RolloutSpec
from rstar_rollout.scheduler.policies import KvBalanced, LearnedAdmission, Placement

__all__ = ["LongestFirst"]

_SORT_AFTER = 32  # rollouts that end between two orders of the groups
_PRIOR_WEIGHT = 2.0  # rollouts of average length that a group's estimate begins with


@dataclass
class _Group:
    """Waiting rollouts of a group and what is known of the others."""

    waiting: deque[RolloutSpec] = field(default_factory=deque)
    started: int = 0
    ended: int = 0
    ended_tokens: int = 0
    estimate: float = 0.0


class LongestFirst(KvBalanced):
    """See the module text.

    Args:
        lengths: what earlier steps taught; None: nothing.
        probes: rollouts of each group that go before any estimate is made.
    """

    def __init__(self, lengths: LengthModel | None = None, *, probes: int = 8) -> None:
        self._lengths = lengths or LengthModel()
        super().__init__(LearnedAdmission(self._lengths), "kv_learned", group_chunk=probes)
        self._probes = probes
        self._groups: dict[str, _Group] = {}
        self._order: list[str] = []
        self._stale = 0
        self._mean = 1.0
        self._unsorted = False
        self._work: dict[str, float] = {}  # tokens expected of each engine's rollouts yet

    def push(self, specs: Sequence[RolloutSpec], loads: Sequence[EngineLoad]) -> None:
        """Probes go to the queue, the rest of each group waits for its estimate."""
        probes: list[RolloutSpec] = []
        for spec in specs:
            group = self._groups.setdefault(spec.group_id, _Group())
            if group.started < self._probes:
                group.started += 1
                probes.append(spec)
            else:
                self._unsorted = self._unsorted or not group.waiting
                group.waiting.append(spec)
                self._ids.add(spec.rollout_id)
        super().push(probes, loads)

    def next(self, loads: Sequence[EngineLoad]) -> Placement | None:
        """As `KvBalanced`, with the groups in order."""
        if self._unsorted or self._stale >= _SORT_AFTER:
            self._sort(loads)
        placement = super().next(loads)
        if placement is not None:
            spec, load = placement
            expected = self._groups[spec.group_id].estimate if spec.group_id in self._groups else 0.0
            self._work[load.engine_id] = self._work.get(load.engine_id, 0.0) + (expected or self._mean)
        return placement

    def _candidates(self, spec: RolloutSpec, loads: Sequence[EngineLoad], share: int) -> Iterable[EngineLoad]:
        """An engine that has the group's prompt, unless more is expected of it than of others; else the least busy."""
        order = sorted(loads, key=lambda load: (self._work.get(load.engine_id, 0.0), len(load.members)))
        average = sum(self._work.values()) / max(len(loads), 1)
        group = spec.group_id
        near = [
            load
            for load in order
            if 0 < load.group_members(group) < self._group_chunk and self._work.get(load.engine_id, 0.0) <= average
        ]
        yield from near
        yield from (load for load in order if load not in near)

    def _head(self) -> RolloutSpec | None:
        """A probe, or else the next of the group that is expected to be longest."""
        probe = super()._head()
        if probe is not None:
            return probe
        while self._order:
            waiting = self._groups[self._order[-1]].waiting
            while waiting and waiting[0].rollout_id not in self._ids:
                waiting.popleft()
            if waiting:
                self._queue.append(waiting.popleft())
                return self._queue[0]
            self._order.pop()
        return None

    def ended(self, spec: RolloutSpec, tokens: int, loads: Sequence[EngineLoad]) -> None:
        """Learn, and now and then sort the groups anew."""
        super().ended(spec, tokens, loads)
        group = self._groups.setdefault(spec.group_id, _Group())
        group.ended += 1
        group.ended_tokens += tokens
        self._stale += 1

    def _sort(self, loads: Sequence[EngineLoad]) -> None:
        self._stale, self._unsorted = 0, False
        names = [name for name, group in self._groups.items() if group.waiting]
        running: dict[str, list[float]] = {}
        for load in loads:
            for member in load.members.values():
                running.setdefault(member.spec.group_id, []).append(member.length)
        limit = max((self._groups[name].waiting[0].max_new_tokens for name in names), default=0)
        means = self._lengths.remaining_means(limit)
        for name in names:
            group = self._groups[name]
            known = group.ended_tokens + sum(self._expected(means, length) for length in running.get(name, ()))
            count = group.ended + len(running.get(name, ()))
            group.estimate = (known + _PRIOR_WEIGHT * means[0]) / (count + _PRIOR_WEIGHT)
            group.estimate = max(group.estimate, 1.0)
        self._mean = max(means[0], 1.0)
        self._work = {
            load.engine_id: sum(
                self._left(means, member.spec.group_id, member.length) for member in load.members.values()
            )
            for load in loads
        }
        self._order = sorted(names, key=lambda name: self._groups[name].estimate)

    def _left(self, means: Sequence[float], group_id: str, length: float) -> float:
        """Tokens expected of a running rollout yet: by its group while it is shorter than that, then by its length."""
        by_length = means[min(int(length // self._lengths.bucket_tokens), len(means) - 1)]
        group = self._groups.get(group_id)
        return max(group.estimate - length, by_length / 2) if group is not None and group.estimate else by_length

    def _expected(self, means: Sequence[float], length: float) -> float:
        return length + means[min(int(length // self._lengths.bucket_tokens), len(means) - 1)]

    def step_ended(self) -> None:
        """Groups of the next step are others."""
        super().step_ended()
        self._groups.clear()
        self._work.clear()
        self._order.clear()
