"""Weights that a sender moves into a pool's engines: who receives, who is held out, and that nobody waits for ever."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace

import pytest

from rstar_rollout.engines.base import (
    EngineDeadError,
    EngineError,
    EngineNotReadyError,
    EngineState,
    GenerationRequest,
    GenerationResult,
    NoiseKey,
    WeightSource,
    WeightUpdateError,
)
from rstar_rollout.engines.pool import EnginePool
from rstar_rollout.engines.scripted import ScriptedEngine
from rstar_rollout.scheduler.policies import KvBalanced

BACKEND = "wire"


class Receiver(ScriptedEngine):
    """Keeps what a sender tells it; of two workers."""

    def __init__(self, hold: asyncio.Event) -> None:
        super().__init__(lambda _: [7, 8, 9], hold=hold, transfer_backend=BACKEND)
        self.told: list[dict[str, object]] = []
        self.fault: Exception | None = None

    async def begin_weight_update(self, version: int, source: WeightSource) -> None:
        if self.fault is not None:
            raise self.fault
        await super().begin_weight_update(version, source)
        self.told.append(json.loads(source.settings_json))

    async def state(self) -> EngineState:
        return replace(await super().state(), workers=2)


class Wired:
    """A pool of receivers, every one ever made, and what a sender does with them."""

    def __init__(self, engines: int) -> None:
        self.hold = asyncio.Event()
        self.engines: list[Receiver] = []

        def make() -> Receiver:
            self.engines.append(Receiver(self.hold))
            return self.engines[-1]

        self.pool = EnginePool([make] * engines, KvBalanced(), slots=8)

    async def begin(self, version: int, **settings: object) -> None:
        await self.pool.begin_weight_update(version, WeightSource(None, BACKEND, json.dumps(settings)))

    async def meet_and_send(self, version: int, workers: int) -> None:
        """As a sender that the engines see for the first time."""
        await self.begin(version, workers=workers, init={"rank_offset": 1})
        await self.send(version)

    async def send(self, version: int) -> None:
        """The rest, to engines that the sender has met."""
        await self.begin(version, update={})
        await self.begin(version, manifest={})
        await self.pool.commit_weight_update(version, "sum")

    def ask(self, rollout: int) -> asyncio.Task[GenerationResult]:
        fields: Mapping[str, object] = {
            "request_id": f"s{rollout}/0",
            "sequence_id": f"s{rollout}",
            "token_ids": tuple(range(16)),
            "max_new_tokens": 16,
            "temperature": 1.0,
            "top_p": 1.0,
            "top_k": 0,
            "stop_ids": frozenset(),
            "noise": NoiseKey(1, f"p{rollout}", 0, 0),
        }
        return asyncio.create_task(self.pool.generate(GenerationRequest(**fields)))  # type: ignore[arg-type]

    async def held_out(self) -> list[str]:
        return [state.held_out for state in await self.pool.states()]


async def settled(rounds: int = 100) -> None:
    """Let everything run that can."""
    for _ in range(rounds):
        await asyncio.sleep(0)


async def wired(engines: int) -> Wired:
    made = Wired(engines)
    await made.pool.start()
    return made


async def lose(made: Wired, number: int) -> None:
    """An engine dies over a rollout and is started again."""
    tasks = [made.ask(100 + n) for n in range(len(made.engines))]
    await settled()
    made.engines[number].die()
    await settled()
    made.hold.set()
    await asyncio.gather(*tasks, return_exceptions=True)
    for n in range(len(tasks)):
        made.pool.release(f"s{100 + n}")


async def test_workers_have_ranks_one_after_another() -> None:
    made = await wired(3)
    await made.meet_and_send(1, workers=6)
    assert [engine.told[0]["init"] for engine in made.engines] == [{"rank_offset": n} for n in (1, 3, 5)]
    assert (await made.pool.state()).weight_version == 1


async def test_a_sender_that_counts_wrongly_is_refused_before_anybody_waits() -> None:
    made = await wired(2)
    with pytest.raises(WeightUpdateError, match="counts on 3 workers, the engines have 4"):
        await made.begin(1, workers=3, init={"rank_offset": 1})
    assert [engine.told for engine in made.engines] == [[], []]


async def test_an_engine_that_was_replaced_is_held_out_with_the_reason() -> None:
    made = await wired(2)
    await made.meet_and_send(1, workers=4)
    await lose(made, 0)
    assert made.engines[2].told == []  # nothing is replayed to it
    first, second = await made.held_out()
    assert "lacks the weights of version 1" in first
    assert second == ""
    results = await asyncio.gather(*(made.ask(n) for n in range(4)))
    assert {result.weight_version for result in results} == {1}
    assert made.engines[2].requests == []


async def test_a_sender_has_to_meet_a_replaced_engine_before_it_sends() -> None:
    made = await wired(2)
    await made.meet_and_send(1, workers=4)
    await lose(made, 0)
    with pytest.raises(WeightUpdateError, match="meet them anew"):
        await made.begin(2, workers=4)
    await made.meet_and_send(2, workers=4)
    assert await made.held_out() == ["", ""]
    await asyncio.gather(*(made.ask(n) for n in range(4)))
    assert made.engines[2].requests
    assert {(await engine.state()).weight_version for engine in made.engines[1:]} == {2}


async def test_rollouts_are_told_when_every_engine_lacks_its_weights() -> None:
    made = await wired(1)
    await made.meet_and_send(3, workers=2)
    waiting = made.ask(0)
    await settled()
    made.engines[0].die()
    with pytest.raises(EngineNotReadyError, match="lacks the weights of version 3"):
        await asyncio.wait_for(waiting, 30)
    made.pool.release("s0")
    with pytest.raises(EngineNotReadyError, match="lacks the weights of version 3"):
        await made.ask(1)
    made.hold.set()
    await made.meet_and_send(3, workers=2)
    assert (await made.ask(2)).weight_version == 3


async def test_an_engine_that_nothing_reaches_is_replaced_and_the_others_go_on() -> None:
    made = await wired(2)
    await made.meet_and_send(1, workers=4)
    await made.begin(2, workers=4)
    made.engines[0].fault = EngineDeadError("weights did not arrive within 600 s")
    await made.send(2)
    await settled()
    assert len(made.engines) == 3
    assert "lacks the weights" in (await made.held_out())[0]
    made.hold.set()
    assert (await made.ask(0)).weight_version == 2


async def test_an_update_that_reaches_no_engine_is_refused_at_once() -> None:
    made = await wired(1)
    await made.meet_and_send(1, workers=2)
    made.engines[0].fault = EngineError("gone")
    with pytest.raises(WeightUpdateError, match="reached no engine"):
        await made.begin(2, workers=2)
    with pytest.raises(EngineNotReadyError):
        await made.ask(0)


async def test_a_dead_engine_has_no_workers_to_count_on() -> None:
    made = await wired(2)
    assert [(state.workers, state.transfer_backend) for state in await made.pool.states()] == [(2, BACKEND)] * 2
    await made.pool.shutdown()  # so that nothing is started again
    made.pool._lose(made.pool._seats[0], "killed")
    states = await made.pool.states()
    assert [state.workers for state in states] == [0, 2]
    assert "died" in states[0].held_out


async def test_what_no_sender_has_begun_cannot_go_on() -> None:
    made = await wired(1)
    with pytest.raises(WeightUpdateError, match="no sender has begun"):
        await made.begin(1, update={})
    with pytest.raises(WeightUpdateError, match="no JSON"):
        await made.pool.begin_weight_update(1, WeightSource(None, BACKEND, "{"))
