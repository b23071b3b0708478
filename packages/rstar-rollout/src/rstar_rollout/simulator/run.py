"""The event loop: rollouts under a policy on simulated engines, from the first placement to the last token."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rstar_rollout.scheduler.load import EngineCapacity, RolloutSpec
from rstar_rollout.scheduler.policies import Policy
from rstar_rollout.scheduler.scheduler import RolloutScheduler
from rstar_rollout.simulator.engine import SimulatedEngine
from rstar_rollout.simulator.speed import SpeedCurve
from rstar_rollout.simulator.workload import SimulatedRollout

__all__ = ["Cluster", "PolicyOutcome", "simulate"]


@dataclass(frozen=True)
class Cluster:
    """Equal engines: how many, how fast, KV cache in tokens, slots (rollouts at once), tokens per KV block."""

    engines: int
    speed: SpeedCurve
    kv_tokens: int
    slots: int
    block_tokens: int = 16


@dataclass(frozen=True)
class PolicyOutcome:
    """What a policy came to. ``timeline``: (seconds, rollouts ended) at about 200 points."""

    policy: str
    step_time_s: float
    idle_share: float
    recomputed_tokens: int
    evictions: int
    peak_kv_share: float
    tokens_per_s: float
    timeline: tuple[tuple[float, int], ...]


class _Simulation:
    def __init__(self, rollouts: Sequence[SimulatedRollout], cluster: Cluster, policy: Policy) -> None:
        self._rollouts = {rollout.rollout_id: rollout for rollout in rollouts}
        self._turn = dict.fromkeys(self._rollouts, 0)
        self._length = dict.fromkeys(self._rollouts, 0)
        names = [f"engine-{index:04d}" for index in range(cluster.engines)]
        self._engines = {name: SimulatedEngine(name, cluster.speed, cluster.kv_tokens) for name in names}
        self._clock = dict.fromkeys(names, 0.0)
        self._versions = dict.fromkeys(names, 0)
        blocks = cluster.kv_tokens // cluster.block_tokens
        self._scheduler = RolloutScheduler(
            policy, (EngineCapacity(name, blocks, cluster.block_tokens, cluster.slots) for name in names)
        )
        self._policy = policy
        self._events: list[tuple[float, int, str, str, int]] = []  # time, order, kind, name, version
        self._order = 0
        self._ends: list[float] = []
        self._scheduler.submit(
            [RolloutSpec(r.rollout_id, r.group_id, r.prompt_tokens, r.max_new_tokens) for r in rollouts]
        )

    def _push(self, time: float, kind: str, name: str, version: int = 0) -> None:
        self._order += 1
        heapq.heappush(self._events, (time, self._order, kind, name, version))

    def run(self, on_progress: Callable[[int, int], None] | None) -> PolicyOutcome:
        self._place(0.0)
        time = 0.0
        while self._events:
            time, _, kind, name, version = heapq.heappop(self._events)
            if kind == "tool":
                self._begin_turn(name, time)
            elif version == self._versions[name]:
                self._engine_event(name, time)
            if on_progress is not None and self._order % 4096 == 0:
                on_progress(len(self._ends), len(self._rollouts))
        if len(self._ends) != len(self._rollouts):
            raise RuntimeError(f"{len(self._rollouts) - len(self._ends)} rollouts never ended")
        return self._outcome(time)

    def _engine_event(self, name: str, time: float) -> None:
        engine = self._engines[name]
        engine.advance(time)
        self._follow(name)
        finished = False
        for rollout_id in engine.ended():
            rollout = self._rollouts[rollout_id]
            turn = rollout.turns[self._turn[rollout_id]]
            self._turn[rollout_id] += 1
            self._length[rollout_id] += turn.tokens
            if self._turn[rollout_id] < len(rollout.turns):
                self._length[rollout_id] += turn.tool_tokens
                self._scheduler.end_turn(rollout_id, self._length[rollout_id])
                self._push(time + turn.tool_seconds, "tool", rollout_id)
                continue
            engine.finish(rollout_id)
            self._scheduler.finish(rollout_id, self._length[rollout_id])
            self._ends.append(time)
            finished = True
        self._schedule(name)
        if finished:
            self._place(time)

    def _follow(self, name: str) -> None:
        """The scheduler's clock of an engine follows the engine's."""
        steps = self._engines[name].steps
        self._scheduler.advance(name, steps - self._clock[name])
        self._clock[name] = steps

    def _place(self, time: float) -> None:
        if not self._scheduler.waiting:
            return
        for name, engine in self._engines.items():
            engine.advance(time)
            self._follow(name)
        for rollout_id, _ in self._scheduler.place():
            self._begin_turn(rollout_id, time)

    def _begin_turn(self, rollout_id: str, time: float) -> None:
        name = self._scheduler.engine_of(rollout_id)
        assert name is not None
        engine = self._engines[name]
        engine.advance(time)
        self._follow(name)
        rollout, index = self._rollouts[rollout_id], self._turn[rollout_id]
        fresh = rollout.turns[index - 1].tool_tokens if index else rollout.prompt_tokens
        engine.begin_turn(
            rollout_id,
            rollout.group_id,
            rollout.prompt_tokens,
            rollout.max_new_tokens,
            fresh,
            rollout.turns[index].tokens,
        )
        self._scheduler.begin_turn(rollout_id)
        self._schedule(name)

    def _schedule(self, name: str) -> None:
        """The engine's next event; what was foreseen before no longer holds."""
        self._versions[name] += 1
        time = self._engines[name].next_event()
        if time is not None:
            self._push(time, "engine", name, self._versions[name])

    def _outcome(self, seconds: float) -> PolicyOutcome:
        engines = self._engines.values()
        busy = sum(engine.busy_seconds for engine in engines)
        tokens = sum(rollout.policy_tokens for rollout in self._rollouts.values())
        stride = max(1, len(self._ends) // 200)
        timeline = [(self._ends[index], index + 1) for index in range(stride - 1, len(self._ends), stride)]
        return PolicyOutcome(
            policy=self._policy.name,
            step_time_s=seconds,
            idle_share=1.0 - busy / (seconds * len(self._engines)) if seconds else 0.0,
            recomputed_tokens=sum(engine.recomputed_tokens for engine in engines),
            evictions=sum(engine.evictions for engine in engines),
            peak_kv_share=max(engine.peak_tokens / engine.kv_tokens for engine in engines),
            tokens_per_s=tokens / seconds if seconds else 0.0,
            timeline=tuple(timeline),
        )


def simulate(
    rollouts: Sequence[SimulatedRollout],
    cluster: Cluster,
    policy: Policy,
    on_progress: Callable[[int, int], None] | None = None,
) -> PolicyOutcome:
    """Run one step.

    Args:
        rollouts: with their futures, which the policy is not shown.
        cluster: the engines.
        policy: fresh, or with what it has learned from earlier steps.
        on_progress: told now and then how many rollouts have ended, of how many.
    """
    return _Simulation(rollouts, cluster, policy).run(on_progress)
