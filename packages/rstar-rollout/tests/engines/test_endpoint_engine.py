"""The endpoint engine where servers fail; what it shares with the others is in the conformance suite."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from completions_server import CompletionsServer, serving

from rstar_protos.errors import UserInputError
from rstar_rollout.engines.base import (
    EngineDeadError,
    EngineError,
    GenerationRequest,
    NoiseKey,
    WeightSource,
    WeightUpdateError,
)
from rstar_rollout.engines.endpoint_engine import EndpointEngine
from rstar_rollout.engines.scripted import ScriptedEngine


def request(**changes) -> GenerationRequest:
    fields = {
        "request_id": "r",
        "sequence_id": "s",
        "token_ids": (1, 2, 3),
        "max_new_tokens": 5,
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 3,
        "stop_ids": frozenset({258}),
        "noise": NoiseKey(1, "p", 0, 0),
    }
    return GenerationRequest(**{**fields, **changes})


def scripted(**options) -> ScriptedEngine:
    return ScriptedEngine(lambda _: [7] * 100, **options)


async def test_what_is_asked_reaches_the_server():
    server = CompletionsServer(scripted())
    async with serving(server) as url:
        engine = EndpointEngine(url)
        await engine.start()
        assert engine.max_model_tokens == 4096
        result = await engine.generate(request())
        await engine.shutdown()
    assert (result.token_ids, result.finish_reason) == ((7,) * 5, "length")
    body = server.bodies[0]
    assert (body["model"], body["prompt"], body["stop_token_ids"]) == ("policy", [1, 2, 3], [258])
    assert (body["temperature"], body["top_p"], body["top_k"]) == (0.7, 0.9, 3)
    assert body["return_token_ids"]


@pytest.mark.parametrize(
    ("broken", "message"), [("ids", "return_token_ids"), ("log_probs", "0 log-probabilities for 5"), ("status", "503")]
)
async def test_answers_that_cannot_be_used_are_errors_of_the_engine(broken: str, message: str):
    async with serving(CompletionsServer(scripted(), broken=broken)) as url:
        engine = EndpointEngine(url)
        await engine.start()
        with pytest.raises(EngineError, match=message):
            await engine.generate(request())
        await engine.shutdown()


async def test_a_stream_that_is_cut_means_the_engine_is_gone():
    async with serving(CompletionsServer(scripted(), broken="cut")) as url:
        engine = EndpointEngine(url)
        await engine.start()
        with pytest.raises(EngineDeadError, match="early"):
            await engine.generate(request())
        await engine.shutdown()


async def test_a_server_that_has_gone_is_dead():
    async with serving(CompletionsServer(scripted())) as url:
        engine = EndpointEngine(url)
        await engine.start()
    with pytest.raises(EngineDeadError):
        await engine.generate(request())
    await engine.shutdown()


async def test_abort_closes_the_connection():
    hold = asyncio.Event()
    server = CompletionsServer(scripted(hold=hold))
    async with serving(server) as url:
        engine = EndpointEngine(url)
        await engine.start()
        task = asyncio.create_task(engine.generate(request()))
        while not server.bodies:  # noqa: ASYNC110  the server announces nothing
            await asyncio.sleep(0.001)
        engine.abort(["r"])
        assert (await task).finish_reason == "aborted"
        await server.disconnected.wait()
        await engine.shutdown()


async def test_no_server_is_an_error_at_the_start():
    engine = EndpointEngine("http://127.0.0.1:9/v1")
    with pytest.raises(EngineError, match="models"):
        await engine.start()
    await engine.shutdown()


async def test_an_unknown_model_is_refused_with_those_there_are():
    async with serving(CompletionsServer(scripted())) as url:
        engine = EndpointEngine(url, "another")
        with pytest.raises(UserInputError, match="policy"):
            await engine.start()
        await engine.shutdown()


def test_an_address_without_scheme_is_refused():
    with pytest.raises(UserInputError, match="http://"):
        EndpointEngine("localhost:8000")


async def test_weights_of_an_endpoint_cannot_be_updated(tmp_path: Path):
    with pytest.raises(WeightUpdateError):
        await EndpointEngine("http://x/v1").begin_weight_update(1, WeightSource(str(tmp_path)))
