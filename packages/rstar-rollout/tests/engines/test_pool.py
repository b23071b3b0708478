"""The pool over scripted engines: waiting, stickiness, engines that die, weights, give-ups."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from rstar_rollout.engines.base import (
    EngineError,
    EngineNotReadyError,
    GenerationRequest,
    GenerationResult,
    NoiseKey,
    WeightSource,
    WeightUpdateError,
)
from rstar_rollout.engines.pool import EnginePool
from rstar_rollout.engines.scripted import ScriptedEngine
from rstar_rollout.scheduler.policies import KvBalanced


class Pool:
    """A pool of scripted engines that finish when told to; every engine ever made is kept."""

    def __init__(self, engines: int = 2, *, kv_blocks: int = 0, slots: int = 100, dead_on_arrival: int = 0) -> None:
        self.hold = asyncio.Event()
        self.engines: list[ScriptedEngine] = []
        self.attempts = 0  # to start an engine that is dead on arrival
        self._dead_after = engines if dead_on_arrival else 10**9

        def make() -> ScriptedEngine:
            if len(self.engines) >= self._dead_after:
                self.attempts += 1
                raise EngineError("no such device")
            engine = ScriptedEngine(lambda _: [7, 8, 9], hold=self.hold, kv_blocks=kv_blocks)
            self.engines.append(engine)
            return engine

        self.pool = EnginePool([make] * engines, KvBalanced(), slots=slots)

    def begin(self, rollout: int, turn: int = 0, **changes) -> asyncio.Task[GenerationResult]:
        fields = {
            "request_id": f"s{rollout}/{turn}",
            "sequence_id": f"s{rollout}",
            "token_ids": tuple(range(16)),
            "max_new_tokens": 16,
            "temperature": 1.0,
            "top_p": 1.0,
            "top_k": 0,
            "stop_ids": frozenset(),
            "noise": NoiseKey(1, f"p{rollout}", 0, turn),
        }
        return asyncio.create_task(self.pool.generate(GenerationRequest(**{**fields, **changes})))

    def served(self) -> list[int]:
        return [len(engine.requests) for engine in self.engines]


async def settled(rounds: int = 20) -> None:
    """Let everything run that can."""
    for _ in range(rounds):
        await asyncio.sleep(0)


def die_at_begin(engine: ScriptedEngine) -> None:
    """Have an engine found dead by the next update."""

    async def gone(version: int, source: WeightSource) -> None:
        raise EngineError("gone")

    engine.begin_weight_update = gone  # type: ignore[method-assign]


@pytest.fixture
async def two() -> Pool:
    made = Pool()
    await made.pool.start()
    return made


async def test_rollouts_that_go_on_share_their_prompt_alone():
    """Each brings 64 tokens of its own beside one block of prompt: two do not fit into seven blocks of sixteen."""
    made = Pool(1, kv_blocks=8)
    await made.pool.start()
    tokens = {"token_ids": tuple(range(80)), "response_tokens": 64, "noise": NoiseKey(1, "p", 0, 0, 64)}
    both = [made.begin(index, **tokens) for index in range(2)]
    await settled()
    assert made.served() == [1]
    made.hold.set()
    await both[0]
    made.pool.release("s0")
    await both[1]
    assert made.served() == [2]


async def test_rollouts_are_shared_out_and_keep_their_engine(two: Pool):
    two.hold.set()
    await asyncio.gather(*(two.begin(index) for index in range(6)))
    assert two.served() == [3, 3]
    await asyncio.gather(*(two.begin(index, turn) for turn in (1, 2) for index in range(6)))
    for engine in two.engines:
        assert set(Counter(request.sequence_id for request in engine.requests).values()) == {3}


async def test_a_rollout_waits_until_the_cache_has_room_for_its_worst_case():
    made = Pool(1, kv_blocks=5)  # one block is the engine's own; a rollout needs two
    await made.pool.start()
    tasks = [made.begin(index) for index in range(3)]
    await settled()
    assert made.served() == [2]
    assert (await made.pool.state()).waiting == 1
    made.hold.set()
    results = await asyncio.gather(*tasks[:2])
    await settled()
    assert not tasks[2].done()  # turns have ended, the rollouts have not
    made.pool.release("s0")
    assert (await tasks[2]).queue_seconds > 0
    assert [result.queue_seconds < 0.5 for result in results] == [True, True]


async def test_turns_of_a_dead_engine_begin_again_elsewhere_and_each_is_answered_once(two: Pool):
    tasks = [two.begin(index) for index in range(8)]
    await settled()
    two.engines[0].die()
    await settled()
    assert two.served()[1] == 8
    two.hold.set()
    results = await asyncio.gather(*tasks)
    assert [result.token_ids for result in results] == [(7, 8, 9)] * 8
    assert two.pool.moved_rollouts == 4


async def test_rollouts_between_turns_move_too(two: Pool):
    two.hold.set()
    await asyncio.gather(*(two.begin(index) for index in range(4)))
    two.engines[0].die()
    two.hold.clear()
    tasks = [two.begin(index, 1) for index in range(4)]
    await settled()
    two.hold.set()
    assert len(await asyncio.gather(*tasks)) == 4


async def test_a_dead_engine_is_replaced_with_the_pools_weights(two: Pool, tmp_path: Path):
    await two.pool.begin_weight_update(5, WeightSource(str(tmp_path)))
    await two.pool.commit_weight_update(5, "sum")
    task = two.begin(0)
    await settled()
    dead = next(engine for engine in two.engines if engine.requests)
    dead.die()
    await settled(100)
    assert len(two.engines) == 3
    two.hold.set()
    assert (await task).weight_version == 5
    assert (await two.engines[2].state()).weight_version == 5
    assert [state.paused for state in await two.pool.states()] == [False, False]


async def test_with_the_last_engine_gone_for_good_the_rollouts_are_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("rstar_rollout.engines.pool._RESTART_SECONDS", 0.0)
    made = Pool(1, dead_on_arrival=1)
    await made.pool.start()
    task = made.begin(0)
    await settled()
    made.engines[0].die()
    with pytest.raises(EngineError, match="no engine is left"):
        await task


async def test_an_engine_that_alone_fails_an_update_takes_no_more_work(two: Pool, tmp_path: Path):
    async def refuse(version: int, checksum: str) -> None:
        raise WeightUpdateError("out of memory")

    two.engines[0].commit_weight_update = refuse  # type: ignore[method-assign]
    await two.pool.begin_weight_update(3, WeightSource(str(tmp_path)))
    await two.pool.commit_weight_update(3, "sum")
    two.hold.set()
    results = await asyncio.gather(*(two.begin(index) for index in range(6)))
    assert {result.weight_version for result in results} == {3}
    assert two.engines[0].requests == []


async def test_an_engine_found_dead_by_an_update_is_left_out(two: Pool, tmp_path: Path):
    die_at_begin(two.engines[0])
    await two.pool.begin_weight_update(3, WeightSource(str(tmp_path)))
    await two.pool.commit_weight_update(3, "sum")
    two.hold.set()
    results = await asyncio.gather(*(two.begin(index) for index in range(4)))
    assert {result.weight_version for result in results} == {3}
    assert two.engines[0].requests == []


async def test_engines_started_again_during_an_update_get_its_weights_and_go_on(tmp_path: Path):
    made = Pool(3)
    await made.pool.start()
    for engine in made.engines[:2]:
        die_at_begin(engine)
    await made.pool.begin_weight_update(3, WeightSource(str(tmp_path)))
    await settled()
    await made.pool.commit_weight_update(3, "sum")
    assert [(state.weight_version, state.paused) for state in await made.pool.states()] == [(3, False)] * 3
    made.hold.set()
    await asyncio.gather(*(made.begin(index) for index in range(6)))
    # The three of the beginning and one restart each for the two that were lost.
    assert made.served() == [0, 0, 2, 2, 2]


async def test_the_only_engine_may_die_in_an_update(tmp_path: Path):
    made = Pool(1)
    await made.pool.start()
    die_at_begin(made.engines[0])
    await made.pool.begin_weight_update(3, WeightSource(str(tmp_path)))
    await settled()
    await made.pool.commit_weight_update(3, "sum")
    made.hold.set()
    assert (await made.begin(0)).weight_version == 3


async def test_an_engine_gone_for_good_is_neither_revived_by_updates_nor_counted_twice(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr("rstar_rollout.engines.pool._RESTART_SECONDS", 0.0)
    made = Pool(2, dead_on_arrival=1)
    await made.pool.start()
    made.hold.set()
    await asyncio.gather(*(made.begin(index) for index in range(2)))
    die_at_begin(made.engines[0])
    for version in (1, 2, 3):
        await made.pool.begin_weight_update(version, WeightSource(str(tmp_path)))
        await settled()
        await made.pool.commit_weight_update(version, "sum")
        await settled()
    assert made.pool.tokens_generated == 6
    assert [state.weight_version for state in await made.pool.states() if not state.paused] == [3]
    assert made.attempts == 3


async def test_an_update_that_one_engine_refuses_does_not_begin(two: Pool, tmp_path: Path):
    async def refuse(version: int, source: WeightSource) -> None:
        raise WeightUpdateError("no such backend")

    two.engines[0].begin_weight_update = refuse  # type: ignore[method-assign]
    with pytest.raises(WeightUpdateError, match="backend"):
        await two.pool.begin_weight_update(3, WeightSource(str(tmp_path)))
    with pytest.raises(EngineNotReadyError, match="could not begin"):
        await two.begin(0)


async def test_an_update_that_no_engine_takes_keeps_generation_refused(two: Pool, tmp_path: Path):
    await two.pool.begin_weight_update(3, WeightSource(str(tmp_path)))
    with pytest.raises(WeightUpdateError, match="checksum"):
        await two.pool.commit_weight_update(3, "")
    with pytest.raises(EngineNotReadyError):
        await two.begin(0)


async def test_a_waiting_rollout_can_be_aborted():
    made = Pool(1, slots=1)
    await made.pool.start()
    first, second = made.begin(0), made.begin(1)
    await settled()
    made.pool.abort(["s1/0"])
    assert (await second).finish_reason == "aborted"
    made.pool.release("s1")
    made.hold.set()
    assert (await first).token_ids


async def test_a_cancelled_rollout_leaves_its_place_to_the_next():
    made = Pool(1, slots=1)
    await made.pool.start()
    first, second = made.begin(0), made.begin(1)
    await settled()
    first.cancel()
    await settled()
    made.pool.release("s0")
    made.hold.set()
    assert (await second).token_ids


async def test_after_all_rollouts_nothing_is_held():
    made = Pool(2, kv_blocks=50)
    await made.pool.start()
    made.hold.set()
    tasks = [made.begin(index) for index in range(40)]
    for index, task in enumerate(tasks):
        await task
        made.pool.release(f"s{index}")
    assert made.pool._rollouts == {}
    assert [load.reserved_blocks for load in made.pool._scheduler.loads] == [0, 0]
    assert all(engine.released for engine in made.engines)


async def test_a_paused_pool_places_nobody(two: Pool):
    await two.pool.pause()
    task = two.begin(0)
    await settled()
    assert two.served() == [0, 0]
    two.hold.set()
    await two.pool.resume()
    assert (await task).token_ids


async def test_shutdown_ends_those_that_wait():
    made = Pool(1, slots=1)
    await made.pool.start()
    made.begin(0)
    second = made.begin(1)
    await settled()
    await made.pool.shutdown()
    with pytest.raises(EngineError, match="stopped"):
        await second


async def test_prefixes_computed_again_are_counted():
    made = Pool(1, kv_blocks=100)
    await made.pool.start()
    made.hold.set()

    engine, ask = made.engines[0], made.engines[0].generate

    async def with_cache(request: GenerationRequest, on_tokens=None) -> GenerationResult:
        result = await ask(request, on_tokens)
        cached = 0 if request.noise.turn == 0 else 16
        return GenerationResult(result.token_ids, result.log_probs, result.finish_reason, 0, cached_tokens=cached)

    engine.generate = with_cache  # type: ignore[method-assign]
    await made.begin(0, 0, token_ids=tuple(range(50)))
    await made.begin(0, 1, token_ids=tuple(range(60)))
    # 52 tokens were known, 48 of them in whole blocks, and 16 were found.
    assert made.pool.recomputed_tokens == 32
