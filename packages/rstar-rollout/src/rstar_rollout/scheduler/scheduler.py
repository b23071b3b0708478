"""The scheduler: keeps account of engines and rollouts, and lets a policy decide.

Its owner tells it what happens (rollouts come, turns begin and end, engines come and go) and acts on the placements
that it returns. A rollout keeps its engine, and its reservation, until it ends: between its turns its prefix stays
cached and nobody is preempted for it. Only the loss of the engine moves it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rstar_rollout.scheduler.load import EngineCapacity, EngineLoad, RolloutSpec
from rstar_rollout.scheduler.policies import Policy

__all__ = ["RolloutScheduler"]


class RolloutScheduler:
    """See the module text. Args: the policy, and the engines there are at first."""

    def __init__(self, policy: Policy, engines: Iterable[EngineCapacity] = ()) -> None:
        self.policy = policy
        self._loads: dict[str, EngineLoad] = {}
        self._placed: dict[str, EngineLoad] = {}
        self._lengths: dict[str, int] = {}  # of rollouts that wait and have some tokens already
        for capacity in engines:
            self.add_engine(capacity)

    @property
    def loads(self) -> Sequence[EngineLoad]:
        """The engines, in the order in which they came."""
        return list(self._loads.values())

    @property
    def waiting(self) -> int:
        """Rollouts without an engine."""
        return self.policy.waiting

    @property
    def in_flight(self) -> int:
        """Rollouts with one."""
        return len(self._placed)

    def add_engine(self, capacity: EngineCapacity) -> None:
        """An engine that can take rollouts from now on."""
        if capacity.engine_id in self._loads:
            raise ValueError(f"engine {capacity.engine_id} is there already")
        self._loads[capacity.engine_id] = EngineLoad(capacity)

    def remove_engine(self, engine_id: str) -> list[str]:
        """An engine is lost: its rollouts wait again, before all others. Returns them, oldest first."""
        load = self._loads.pop(engine_id)
        moved = list(load.members.values())
        for member in moved:
            del self._placed[member.spec.rollout_id]
            self._lengths[member.spec.rollout_id] = int(member.length)
        self.policy.push_front([member.spec for member in moved])
        return [member.spec.rollout_id for member in moved]

    def submit(self, specs: Sequence[RolloutSpec], lengths: Mapping[str, int] | None = None) -> None:
        """Rollouts that wait for an engine from now on; ``lengths``: tokens after the prompt that they bring along."""
        self._lengths.update(lengths or {})
        self.policy.push(specs, self.loads)

    def place(self) -> list[tuple[str, str]]:
        """All that can be placed now, as (rollout id, engine id); they are in flight from now on."""
        placed: list[tuple[str, str]] = []
        loads = self.loads
        while (placement := self.policy.next(loads)) is not None:
            spec, load = placement
            load.add(spec, self._lengths.pop(spec.rollout_id, 0))
            self._placed[spec.rollout_id] = load
            placed.append((spec.rollout_id, load.engine_id))
        return placed

    def engine_of(self, rollout_id: str) -> str | None:
        """The engine that a rollout is on; None: it waits, or is unknown."""
        load = self._placed.get(rollout_id)
        return load.engine_id if load is not None else None

    def advance(self, engine_id: str, tokens: float) -> None:
        """Every rollout that generates on this engine has got so many more tokens."""
        load = self._loads.get(engine_id)
        if load is not None:
            load.clock += tokens

    def begin_turn(self, rollout_id: str) -> None:
        """A rollout generates."""
        load = self._placed.get(rollout_id)
        if load is not None:
            load.members[rollout_id].begin_turn()

    def end_turn(self, rollout_id: str, length: int) -> None:
        """A rollout has stopped generating, with ``length`` tokens after its prompt."""
        load = self._placed.get(rollout_id)
        if load is not None:
            load.members[rollout_id].end_turn(length)

    def finish(self, rollout_id: str, length: int | None) -> None:
        """A rollout will not go on.

        Args:
            rollout_id: in flight or waiting.
            length: tokens after its prompt, of one that ended by itself; None: it was given up, and teaches nothing.
        """
        load = self._placed.pop(rollout_id, None)
        self._lengths.pop(rollout_id, None)
        if load is None:
            self.policy.discard(rollout_id)
        else:
            member = load.remove(rollout_id)
            if length is not None:
                self.policy.ended(member.spec, length, self.loads)
        if not self._placed and not self.policy.waiting:
            self.policy.step_ended()
