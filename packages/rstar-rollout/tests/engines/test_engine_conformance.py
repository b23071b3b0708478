"""What every engine must do, run over all of them."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from completions_server import CompletionsServer, serving

from rstar_protos.errors import UserInputError
from rstar_rollout.engines.base import (
    Engine,
    EngineError,
    EngineNotReadyError,
    GenerationRequest,
    NoiseKey,
    WeightSource,
    WeightUpdateError,
)
from rstar_rollout.engines.endpoint_engine import EndpointEngine
from rstar_rollout.engines.pool import EnginePool
from rstar_rollout.engines.scripted import ScriptedEngine
from rstar_rollout.engines.transformers_engine import TransformersEngine, TransformersSettings
from rstar_rollout.scheduler.policies import KvBalanced

END = 258
PROMPT = tuple(range(40, 90))

MakeEngine = Callable[[], Engine]


def request(index: int = 0, **changes: object) -> GenerationRequest:
    fields: dict[str, object] = {
        "request_id": f"r{index}",
        "sequence_id": f"s{index}",
        "token_ids": PROMPT,
        "max_new_tokens": 12,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "stop_ids": frozenset({END}),
        "noise": NoiseKey(1, "p", index, 0),
    }
    return GenerationRequest(**{**fields, **changes})  # type: ignore[arg-type]


def generating(engine: Engine) -> Callable[[], Awaitable[bool]]:
    async def condition() -> bool:
        return engine.tokens_generated > 0

    return condition


def checksum_of(folder: Path) -> str:
    from rstar_rollout.engines.weight_files import folder_checksum

    return folder_checksum(folder)


VLLM = pytest.param("vllm", marks=pytest.mark.heavy)
MODELS = ["transformers-rounds", "transformers-continuous", "pool", VLLM]


def transformers(folder: Path, *, rounds: bool) -> Engine:
    return TransformersEngine(
        folder, TransformersSettings(dtype="float32", deterministic=rounds, max_batch=4, threads=1)
    )


@contextlib.asynccontextmanager
async def started(kind: str, folder: Path) -> AsyncIterator[Engine]:
    async with contextlib.AsyncExitStack() as stack:
        made: Engine
        if kind == "scripted":
            made = ScriptedEngine(lambda r: [1 + r.noise.sample_index] * 100)
        elif kind == "vllm":
            from rstar_rollout.engines.vllm_engine import VllmEngine, VllmSettings

            made = VllmEngine(folder, VllmSettings(kv_gib=0.25, max_model_tokens=512, sleep_level=1))
        elif kind == "pool":
            made = EnginePool([lambda: transformers(folder, rounds=False)] * 2, KvBalanced(), slots=16)
        elif kind == "endpoint":
            behind = transformers(folder, rounds=False)
            await behind.start()
            stack.push_async_callback(behind.shutdown)
            made = EndpointEngine(await stack.enter_async_context(serving(CompletionsServer(behind))))
        else:
            made = transformers(folder, rounds=kind.endswith("rounds"))
        await made.start()
        try:
            yield made
        finally:
            await made.shutdown()


@pytest.fixture(params=["scripted", "endpoint", *MODELS])
async def engine(request: pytest.FixtureRequest, tiny_model: Path) -> AsyncIterator[Engine]:
    async with started(request.param, tiny_model) as made:
        yield made


@pytest.fixture(params=["endpoint", *MODELS])
async def slow_engine(request: pytest.FixtureRequest, tiny_model: Path) -> AsyncIterator[Engine]:
    """Engines that take a while; the scripted one answers at once, its hold is tested with the agent loop."""
    async with started(request.param, tiny_model) as made:
        yield made


@pytest.fixture(params=["scripted", *MODELS])
async def updatable(request: pytest.FixtureRequest, tiny_model: Path) -> AsyncIterator[Engine]:
    """Engines whose weights are ours."""
    async with started(request.param, tiny_model) as made:
        yield made


async def test_stops_at_length_with_one_log_prob_per_token(engine: Engine):
    result = await engine.generate(request(stop_ids=frozenset()))
    assert len(result.token_ids) == len(result.log_probs) == 12
    assert result.finish_reason == "length"
    assert all(math.isfinite(value) and value <= 1e-6 for value in result.log_probs)


async def test_stop_token_is_returned_and_ends_the_turn(engine: Engine):
    free = await engine.generate(request(stop_ids=frozenset()))
    stop = free.token_ids[3]
    first = free.token_ids.index(stop)
    result = await engine.generate(request(1, stop_ids=frozenset({stop}), noise=NoiseKey(1, "p", 0, 0)))
    assert result.token_ids == free.token_ids[: first + 1]
    assert result.finish_reason == "stop"


@pytest.mark.parametrize(
    ("changes", "field"), [({"token_ids": ()}, "token_ids"), ({"max_new_tokens": 0}, "max_new_tokens")]
)
async def test_a_request_that_cannot_be_served_is_refused_by_the_field_at_fault(
    engine: Engine, changes: dict[str, object], field: str
):
    with pytest.raises(UserInputError) as refusal:
        await engine.generate(request(**changes))
    assert refusal.value.field == field


async def test_the_states_of_its_engines_add_up_to_its_own(engine: Engine):
    whole, parts = await engine.state(), await engine.states()
    assert sum(part.total_kv_blocks for part in parts) == whole.total_kv_blocks
    assert {(part.type, part.weight_version) for part in parts} == {(whole.type, whole.weight_version)}


async def test_batch_results_come_in_order_of_requests(engine: Engine):
    requests = [request(i, max_new_tokens=1 + (i * 5) % 7, stop_ids=frozenset()) for i in range(11)]
    results = await engine.generate_batch(requests)
    assert [len(result.token_ids) for result in results] == [r.max_new_tokens for r in requests]


async def test_empty_batch(engine: Engine):
    assert await engine.generate_batch([]) == []


async def test_same_noise_gives_same_tokens(engine: Engine):
    first = await engine.generate_batch([request(i) for i in range(6)])
    for i in range(6):
        engine.release(f"s{i}")
    second = await engine.generate_batch([request(i) for i in range(6)])
    assert [r.token_ids for r in first] == [r.token_ids for r in second]


async def test_abort_of_a_running_request_returns_it(slow_engine: Engine, until):
    task = asyncio.create_task(slow_engine.generate(request(max_new_tokens=400, stop_ids=frozenset())))
    await until(generating(slow_engine))
    slow_engine.abort(["r0"])
    result = await task
    assert result.finish_reason == "aborted"
    assert len(result.token_ids) == len(result.log_probs) < 400


async def test_cancelling_the_call_frees_the_request(slow_engine: Engine, until):
    task = asyncio.create_task(slow_engine.generate(request(max_new_tokens=400, stop_ids=frozenset())))
    await until(generating(slow_engine))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await slow_engine.generate(request(1))).token_ids

    async def idle() -> bool:
        state = await slow_engine.state()
        return state.running == state.waiting == 0

    await until(idle)


async def test_paused_engine_lets_requests_wait(engine: Engine):
    await engine.pause()
    assert (await engine.state()).paused
    task = asyncio.create_task(engine.generate(request()))
    await asyncio.sleep(0)
    assert not task.done()
    await engine.resume()
    assert (await task).token_ids


async def test_ids_are_told_as_they_come(engine: Engine):
    told: list[int] = []
    result = await engine.generate(request(stop_ids=frozenset()), told.extend)
    assert tuple(told) == result.token_ids
    assert len(told) == 12


async def test_told_ids_come_before_the_end(slow_engine: Engine):
    first = asyncio.Event()
    task = asyncio.create_task(
        slow_engine.generate(request(max_new_tokens=400, stop_ids=frozenset()), lambda _: first.set())
    )
    await first.wait()
    assert not task.done()
    slow_engine.abort(["r0"])
    await task


async def test_a_sleeping_engine_refuses_until_it_is_woken(engine: Engine):
    before = await engine.generate(request())
    await engine.sleep()
    assert (await engine.state()).paused
    with pytest.raises(EngineNotReadyError):
        await engine.generate(request(1))
    await engine.wake()
    assert (await engine.generate(request(2, noise=NoiseKey(1, "p", 0, 0)))).token_ids == before.token_ids


async def test_sleep_is_refused_under_running_requests(slow_engine: Engine, until):
    task = asyncio.create_task(slow_engine.generate(request(max_new_tokens=400, stop_ids=frozenset())))
    await until(generating(slow_engine))
    with pytest.raises(EngineError, match="pause first"):
        await slow_engine.sleep()
    slow_engine.abort(["r0"])
    await task


async def test_generation_is_refused_during_an_update(updatable: Engine, other_model: Path):
    await updatable.begin_weight_update(3, WeightSource(str(other_model)))
    with pytest.raises(EngineNotReadyError):
        await updatable.generate(request())
    await updatable.commit_weight_update(3, checksum_of(other_model))
    assert (await updatable.generate(request(1))).weight_version == 3
    assert (await updatable.state()).weight_version == 3


async def test_failed_commit_keeps_generation_refused_until_one_succeeds(updatable: Engine, other_model: Path):
    await updatable.begin_weight_update(3, WeightSource(str(other_model)))
    with pytest.raises(WeightUpdateError):
        await updatable.commit_weight_update(3, "" if updatable.name == "scripted" else "0" * 64)
    with pytest.raises(EngineNotReadyError):
        await updatable.generate(request())
    await updatable.begin_weight_update(4, WeightSource(str(other_model)))
    await updatable.commit_weight_update(4, checksum_of(other_model))
    assert (await updatable.generate(request())).weight_version == 4


async def test_commit_without_begin_is_refused(updatable: Engine):
    with pytest.raises(WeightUpdateError):
        await updatable.commit_weight_update(9, "x")


async def test_missing_folder_is_refused_and_nothing_changes(updatable: Engine, tmp_path: Path):
    with pytest.raises(WeightUpdateError):
        await updatable.begin_weight_update(3, WeightSource(str(tmp_path / "absent")))
    assert (await updatable.generate(request())).token_ids
