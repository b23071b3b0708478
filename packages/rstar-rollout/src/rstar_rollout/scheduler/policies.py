"""The scheduling policies: who goes where, and who has to wait.

A policy keeps the queue of rollouts that wait and, asked for the next placement, picks one and an engine, or nobody.
The same objects decide for the real service and for the simulator.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Protocol

from rstar_rollout.scheduler.forecast import forecast_peak
from rstar_rollout.scheduler.lengths import LengthModel
from rstar_rollout.scheduler.load import EngineLoad, RolloutSpec, least_loaded

__all__ = [
    "Admission",
    "KvBalanced",
    "LearnedAdmission",
    "LeastInFlight",
    "Placement",
    "Policy",
    "StaticSplit",
    "WorstCaseAdmission",
]

Placement = tuple[RolloutSpec, EngineLoad]


class Policy(Protocol):
    """What a scheduler asks."""

    name: str

    def push(self, specs: Sequence[RolloutSpec], loads: Sequence[EngineLoad]) -> None:
        """Rollouts that wait from now on, behind the others."""

    def push_front(self, specs: Sequence[RolloutSpec]) -> None:
        """Rollouts that have lost their engine: they go first."""

    def discard(self, rollout_id: str) -> bool:
        """Forget a waiting rollout; False: it does not wait."""

    def next(self, loads: Sequence[EngineLoad]) -> Placement | None:
        """The next placement, taken out of the queue; None: nothing can be placed now."""

    def ended(self, spec: RolloutSpec, tokens: int, loads: Sequence[EngineLoad]) -> None:
        """A rollout has ended by itself with this many tokens after its prompt."""

    def step_ended(self) -> None:
        """Nothing runs or waits any more."""

    @property
    def waiting(self) -> int:
        """Rollouts in the queue."""


class _Queue:
    """First in, first out, with removal by id."""

    name = ""

    def __init__(self) -> None:
        self._queue: deque[RolloutSpec] = deque()
        self._ids: set[str] = set()

    def push(self, specs: Sequence[RolloutSpec], loads: Sequence[EngineLoad]) -> None:
        self._queue.extend(specs)
        self._ids.update(spec.rollout_id for spec in specs)

    def push_front(self, specs: Sequence[RolloutSpec]) -> None:
        self._queue.extendleft(reversed(specs))
        self._ids.update(spec.rollout_id for spec in specs)

    def discard(self, rollout_id: str) -> bool:
        # Its entry stays in the queue and is passed over when it comes to the front.
        if rollout_id not in self._ids:
            return False
        self._ids.remove(rollout_id)
        return True

    def _head(self) -> RolloutSpec | None:
        while self._queue and self._queue[0].rollout_id not in self._ids:
            self._queue.popleft()
        return self._queue[0] if self._queue else None

    def _take(self) -> RolloutSpec:
        spec = self._queue.popleft()
        self._ids.remove(spec.rollout_id)
        return spec

    def ended(self, spec: RolloutSpec, tokens: int, loads: Sequence[EngineLoad]) -> None:
        pass

    def step_ended(self) -> None:
        pass

    @property
    def waiting(self) -> int:
        return len(self._ids)


class StaticSplit(_Queue):
    """Every batch is split evenly when it comes in, in order; KV memory is not counted (what most projects do)."""

    name = "static"

    def __init__(self) -> None:
        super().__init__()
        self._shares: dict[str, deque[RolloutSpec]] = {}

    def push(self, specs: Sequence[RolloutSpec], loads: Sequence[EngineLoad]) -> None:
        """Split: neighbours, so whole groups where they fit, go to the same engine."""
        self._ids.update(spec.rollout_id for spec in specs)
        if not loads:
            self._queue.extend(specs)
            return
        if len(specs) == 1:
            sizes = {load.engine_id: load.placed + len(self._shares.get(load.engine_id, ())) for load in loads}
            self._share(min(sizes, key=lambda name: (sizes[name], name))).append(specs[0])
            return
        for index, spec in enumerate(specs):
            self._share(loads[index * len(loads) // len(specs)].engine_id).append(spec)

    def _share(self, engine_id: str) -> deque[RolloutSpec]:
        return self._shares.setdefault(engine_id, deque())

    def next(self, loads: Sequence[EngineLoad]) -> Placement | None:
        """Of any engine with a free slot its next rollout; rollouts of engines that have gone are split anew."""
        names = {load.engine_id for load in loads}
        for name in [name for name in self._shares if name not in names]:
            self._queue.extend(self._shares.pop(name))
        if self._queue and loads:
            orphans = [spec for spec in self._queue if spec.rollout_id in self._ids]
            self._queue.clear()
            self.push(orphans, loads)
        for load in loads:
            share = self._share(load.engine_id)
            while share and share[0].rollout_id not in self._ids:
                share.popleft()
            if share and load.free_slots > 0:
                spec = share.popleft()
                self._ids.remove(spec.rollout_id)
                return spec, load
        return None


class LeastInFlight(_Queue):
    """The engine with the fewest rollouts gets the next one, up to its slots; KV memory is not counted."""

    name = "least_in_flight"

    def next(self, loads: Sequence[EngineLoad]) -> Placement | None:
        """The head of the queue and the engine with the fewest rollouts."""
        spec = self._head()
        free = [load for load in loads if load.free_slots > 0]
        if spec is None or not free:
            return None
        load = min(free, key=lambda load: (len(load.members), load.engine_id))
        return self._take(), load


class Admission(Protocol):
    """Whether an engine can take one more rollout without its KV cache ever overflowing."""

    def fits(self, spec: RolloutSpec, load: EngineLoad) -> bool:
        """Whether it can."""

    def ended(self, spec: RolloutSpec, tokens: int, loads: Sequence[EngineLoad]) -> None:
        """Learn from a rollout that has ended."""

    def step_ended(self) -> None:
        """Nothing runs or waits any more."""


class WorstCaseAdmission:
    """Every rollout reserves what it holds at its limit: no overflow, whatever the lengths (paper section 3.2)."""

    def fits(self, spec: RolloutSpec, load: EngineLoad) -> bool:
        """By reservations."""
        return load.blocks_needed(spec) <= load.free_blocks

    def ended(self, spec: RolloutSpec, tokens: int, loads: Sequence[EngineLoad]) -> None:
        """Nothing to learn."""

    def step_ended(self) -> None:
        """Nothing to forget."""


class LearnedAdmission:
    """Admits by the forecast peak of the cache, from lengths learned so far; more than the worst case never is.

    Args:
        lengths: what is known already, of earlier steps; None: nothing, so it begins with the worst case.
        deviations: standard deviations that the forecast adds to the mean.
        correlation: between rollouts of an engine; those of one group are alike.
        spare: share of the cache that is left alone.
    """

    def __init__(
        self,
        lengths: LengthModel | None = None,
        *,
        deviations: float = 3.0,
        correlation: float = 0.02,
        spare: float = 0.02,
    ) -> None:
        self.lengths = lengths or LengthModel()
        self._deviations = deviations
        self._correlation = correlation
        self._spare = spare

    def fits(self, spec: RolloutSpec, load: EngineLoad) -> bool:
        """By reservations if they leave room, otherwise by the forecast with the rollout added."""
        size = load.capacity.block_tokens
        if load.blocks_needed(spec) <= load.free_blocks or not load.members:
            return True
        members = load.members.values()
        limit = max(spec.max_new_tokens, max(member.spec.max_new_tokens for member in members))
        peak = forecast_peak(
            [0.0, *(member.length for member in members)],
            limit,
            self.lengths.survival,
            self.lengths.bucket_tokens,
            self._deviations,
            self._correlation,
        )
        prompts = load.prompt_tokens + (0 if load.holds_group(spec.group_id) else spec.prompt_tokens)
        rounding = size * (len(load.members) + 1)  # each rollout's last block is half empty, prompts likewise
        return peak + prompts + rounding <= load.capacity.kv_tokens * (1.0 - self._spare)

    def ended(self, spec: RolloutSpec, tokens: int, loads: Sequence[EngineLoad]) -> None:
        """One more length."""
        self.lengths.add(tokens, spec.max_new_tokens)
        running = (member.length for load in loads for member in load.members.values())
        if self.lengths.refresh(running):
            for load in loads:
                load.refused = None

    def step_ended(self) -> None:
        """Older lengths count less."""
        self.lengths.next_step()


class KvBalanced(_Queue):
    """Rollouts wait until an engine has KV memory for them, and go where the load is least.

    Rollouts of a group go to an engine that has the group's prompt, as long as it has room and holds no more than its
    fair share of all that is outstanding: affinity never leaves another engine idle. And no more than ``group_chunk``
    of a group go together, because they become long together. First in, first out: a long rollout is not overtaken
    for ever by shorter ones.
    """

    name = "kv_balanced"

    def __init__(self, admission: Admission | None = None, name: str = "kv_balanced", *, group_chunk: int = 8) -> None:
        super().__init__()
        self._group_chunk = group_chunk
        self.name = name
        self.admission: Admission = admission or WorstCaseAdmission()

    def next(self, loads: Sequence[EngineLoad]) -> Placement | None:
        """The head of the queue, if any engine can take it."""
        spec = self._head()
        if spec is None:
            return None
        outstanding = self.waiting + sum(len(load.members) for load in loads)
        share = -(-outstanding // len(loads)) if loads else 0
        for load in self._candidates(spec, loads, share):
            need = load.blocks_needed(spec)
            if load.free_slots < 1 or (load.refused is not None and need >= load.refused):
                continue
            if self.admission.fits(spec, load):
                return self._take(), load
            load.refused = need if load.refused is None else min(load.refused, need)
        return None

    def _candidates(self, spec: RolloutSpec, loads: Sequence[EngineLoad], share: int) -> Iterable[EngineLoad]:
        group = spec.group_id
        near = [
            load for load in loads if 0 < load.group_members(group) < self._group_chunk and len(load.members) < share
        ]
        yield from near
        yield from least_loaded(load for load in loads if load not in near)

    def ended(self, spec: RolloutSpec, tokens: int, loads: Sequence[EngineLoad]) -> None:
        """Let the admission learn."""
        self.admission.ended(spec, tokens, loads)

    def step_ended(self) -> None:
        """Let the admission know."""
        self.admission.step_ended()
