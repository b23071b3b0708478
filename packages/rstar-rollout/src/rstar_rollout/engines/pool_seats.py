"""The places of a pool, which engines come and go in, and what the pool knows of the rollouts that sit there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from rstar_rollout.engines.base import Engine, EngineState
from rstar_rollout.scheduler.load import EngineCapacity, RolloutSpec

__all__ = ["EngineFactory", "PooledRollout", "Seat", "SeatState", "new_place", "summed_state"]

EngineFactory = Callable[[], Engine]

_UNCOUNTED_BLOCKS = 1 << 40  # of an engine that does not tell its KV cache: slots alone count


class SeatState(Enum):
    """What can be had of a place."""

    ALIVE = "alive"
    """Its engine takes work."""
    REVIVING = "reviving"
    """Its engine has died and another is being started."""
    PARKED = "parked"
    """Another was started and lacks the pool's weights: it takes work once an update has brought them."""
    GONE = "gone"
    """Its engines have died too often: none is started any more."""


@dataclass
class Seat:
    """A place in the pool; the engine in it may be replaced."""

    name: str
    factory: EngineFactory
    engine: Engine
    state: SeatState = SeatState.ALIVE
    restarts: int = 0
    generating: int = 0
    tokens_seen: int = 0
    tokens_before: int = 0
    """Tokens of engines that were in this place before."""
    block_tokens: int = 1

    @property
    def alive(self) -> bool:
        """Its engine takes work."""
        return self.state is SeatState.ALIVE

    async def capacity(self, slots: int) -> EngineCapacity:
        """What its engine holds now; its counters begin anew.

        Args:
            slots: rollouts at once.
        """
        state = await self.engine.state()
        self.block_tokens = max(1, state.block_tokens)
        self.generating, self.tokens_seen = 0, self.engine.tokens_generated
        # One block is the engine's own (vLLM keeps an empty one).
        blocks = state.total_kv_blocks - 1 if state.total_kv_blocks > 1 else _UNCOUNTED_BLOCKS
        return EngineCapacity(self.name, blocks, self.block_tokens, slots)

    @property
    def tokens_generated(self) -> int:
        """By all engines that have been in this place."""
        return self.tokens_before + (self.engine.tokens_generated if self.alive else 0)


@dataclass
class PooledRollout:
    """A rollout that the pool knows of."""

    spec: RolloutSpec
    seat: asyncio.Future[Seat | None]
    """None: given up while it waited."""
    length: int = 0
    cached: int = 0
    """Tokens whose KV its engine should still have."""
    natural: bool = False
    """The last turn ended by itself."""
    requests: set[str] = field(default_factory=set)


def new_place() -> asyncio.Future[Seat | None]:
    """What a rollout without an engine waits for."""
    return asyncio.get_running_loop().create_future()


def summed_state(name: str, states: Sequence[EngineState], *, waiting: int, paused: bool) -> EngineState:
    """Engines as one: sums, and the oldest weight version.

    Args:
        name: type of the engines.
        states: of those that count, at least one.
        waiting: rollouts that wait for an engine, beside the requests that wait in one.
        paused: nothing begins, whatever the engines say.
    """
    return EngineState(
        engine_id="pool",
        type=name,
        weight_version=min(state.weight_version for state in states),
        checksum=states[0].checksum,
        free_kv_blocks=sum(state.free_kv_blocks for state in states),
        total_kv_blocks=sum(state.total_kv_blocks for state in states),
        block_tokens=states[0].block_tokens,
        running=sum(state.running for state in states),
        waiting=sum(state.waiting for state in states) + waiting,
        paused=all(state.paused for state in states) or paused,
        workers=sum(state.workers for state in states),
        transfer_backend=states[0].transfer_backend,
        sleeps=all(state.sleeps for state in states),
    )
