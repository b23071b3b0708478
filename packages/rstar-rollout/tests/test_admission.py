"""What waiting for an engine does to a rollout: nothing."""

from __future__ import annotations

import asyncio

import pytest

from rstar_model.chat_format import ChatFormat
from rstar_model.tokenizer import Tokenizer
from rstar_model.types import EndReason
from rstar_rollout import rollout_state
from rstar_rollout.agent_loop import AgentLoop
from rstar_rollout.engines.base import GenerationRequest
from rstar_rollout.engines.pool import EnginePool
from rstar_rollout.engines.scripted import ScriptedEngine
from rstar_rollout.limits import ProblemRequest, RolloutLimits, SamplingSettings, ToolSettings
from rstar_rollout.scheduler.policies import KvBalanced

NO_TOOLS = ToolSettings(enabled=False)


async def test_waiting_for_an_engine_is_not_the_rollouts_time(
    chat_format: ChatFormat, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
):
    class Clock:
        now = 0.0

        def monotonic(self) -> float:
            return self.now

    clock = Clock()
    monkeypatch.setattr(rollout_state, "time", clock)

    class Crowded(ScriptedEngine):
        async def admit(self, request: GenerationRequest) -> None:
            clock.now += 1000.0

    engine = Crowded(lambda _: tokenizer.encode("<answer>1</answer><|im_end|>"), deterministic=False)
    loop = AgentLoop(engine, chat_format, tokenizer, None)
    limits = RolloutLimits(max_turns=1, max_response_tokens=100, max_wall_seconds=600.0)
    batch = loop.batch([ProblemRequest("p", "g", "1?", 1)], SamplingSettings(), limits, NO_TOOLS)
    assert [trajectory.end_reason async for trajectory in batch] == [EndReason.ANSWERED]


async def test_a_request_that_is_cancelled_while_it_waits_comes_out_as_cancelled(
    chat_format: ChatFormat, tokenizer: Tokenizer
):
    hold = asyncio.Event()
    engine = ScriptedEngine(lambda _: tokenizer.encode("x<|im_end|>"), deterministic=False, hold=hold)
    pool = EnginePool([lambda: engine], KvBalanced(), slots=1)
    await pool.start()
    loop = AgentLoop(pool, chat_format, tokenizer, None)
    limits = RolloutLimits(max_turns=1, max_response_tokens=100)
    batch = loop.batch([ProblemRequest("p", "g", "1?", 5)], SamplingSettings(), limits, NO_TOOLS)

    async def collect() -> list[EndReason]:
        return [trajectory.end_reason async for trajectory in batch]

    collecting = asyncio.create_task(collect())
    while not engine.requests or (await pool.state()).waiting < 4:  # noqa: ASYNC110  nothing announces it
        await asyncio.sleep(0.001)
    assert batch.cancel() == 5
    assert await collecting == [EndReason.CANCELLED] * 5
    assert pool._rollouts == {}
