"""Limits of the agent loop in time and at once, and what happens where a tool or a request is at fault."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest

from rstar_model.chat_format import ChatFormat
from rstar_model.tokenizer import Tokenizer
from rstar_model.tools import PYTHON_TOOL, ToolLimits, ToolSpec
from rstar_model.trajectory import Trajectory
from rstar_model.types import EndReason, ToolStatus
from rstar_protos.errors import UserInputError
from rstar_rollout.agent_loop import AgentLoop, RolloutBatch
from rstar_rollout.engines.base import GenerationRequest, GenerationResult
from rstar_rollout.engines.scripted import ScriptedEngine
from rstar_rollout.limits import ProblemRequest, RolloutLimits, SamplingSettings, ToolSettings
from rstar_rollout.tool_executor import ToolInvocation, ToolResult

END = "<|im_end|>"
SCHEMA = {"type": "object", "properties": {"code": {"type": "string"}}}
Execute = Callable[[ToolInvocation], Awaitable[ToolResult]]


def call(name: str, code: str = "1") -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': {'code': code}})}</tool_call>"


class Tools:
    """Tools that do what a function does."""

    def __init__(self, execute: Execute, *specs: ToolSpec) -> None:
        self.specs = specs or (PYTHON_TOOL,)
        self.execute = execute


async def answer(invocation: ToolInvocation) -> ToolResult:
    return ToolResult(ToolStatus.OK, "1")


async def never(invocation: ToolInvocation) -> ToolResult:
    await asyncio.Event().wait()
    raise AssertionError


@pytest.fixture
def make(chat_format: ChatFormat, tokenizer: Tokenizer):
    """An agent loop whose policy says the given line in every turn but the last of two."""

    def build(line: str, tools: Tools, *, deterministic: bool = False, hold: asyncio.Event | None = None) -> AgentLoop:
        def script(request: GenerationRequest) -> list[int]:
            return tokenizer.encode((line if request.noise.turn == 0 else "done") + END)

        return AgentLoop(ScriptedEngine(script, deterministic=deterministic, hold=hold), chat_format, tokenizer, tools)

    return build


def batch(loop: AgentLoop, samples: int = 1, tools: ToolSettings | None = None, **limits: float) -> RolloutBatch:
    settings = RolloutLimits(**limits)  # type: ignore[arg-type]  # whole numbers stay whole
    return loop.batch([ProblemRequest("p", "g", "?", samples)], SamplingSettings(), settings, tools or ToolSettings())


async def collect(batch: RolloutBatch) -> list[Trajectory]:
    return [trajectory async for trajectory in batch]


@pytest.mark.parametrize("deterministic", [True, False])
async def test_time_limit_ends_a_rollout_that_waits_for_a_tool(make, deterministic: bool):
    loop = make(call(PYTHON_TOOL.name), Tools(never), deterministic=deterministic)
    (t,) = await collect(batch(loop, max_wall_seconds=0.05))
    assert (t.end_reason, t.turns, t.tool_calls) == (EndReason.TRUNCATED, 1, ())
    for _ in range(5):  # a cancelled task ends when the event loop comes to it
        await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) == 1


async def test_time_limit_ends_a_rollout_in_the_midst_of_a_turn_and_keeps_its_tokens(
    chat_format: ChatFormat, tokenizer: Tokenizer
):
    class Slow(ScriptedEngine):
        """Has said something by the time it is told to stop."""

        async def generate(self, request: GenerationRequest, on_tokens: object = None) -> GenerationResult:
            result = await super().generate(request)
            return GenerationResult((1, 2, 3), (-1.0, -2.0, -3.0), result.finish_reason, 0)

    engine = Slow(lambda request: [], deterministic=False, hold=asyncio.Event())
    loop = AgentLoop(engine, chat_format, tokenizer, None)
    (t,) = await collect(batch(loop, max_wall_seconds=0.05))
    assert (t.end_reason, t.policy_tokens, t.turns) == (EndReason.TRUNCATED, 3, 1)
    assert engine.released == {engine.requests[0].sequence_id}


async def test_time_limit_leaves_a_quick_rollout_alone(make):
    (t,) = await collect(batch(make(call(PYTHON_TOOL.name), Tools(answer)), max_wall_seconds=300.0))
    assert t.end_reason is EndReason.ANSWERED


@pytest.mark.parametrize("deterministic", [True, False])
async def test_a_tool_that_raises_is_an_infrastructure_fault(make, deterministic: bool):
    async def broken(invocation: ToolInvocation) -> ToolResult:
        raise RuntimeError("host nine is gone")

    (t,) = await collect(batch(make(call(PYTHON_TOOL.name), Tools(broken), deterministic=deterministic)))
    assert t.end_reason is EndReason.INFRASTRUCTURE
    assert "host nine" in t.error
    assert all("host nine" not in segment.text for segment in t.segments)


async def test_stuck_calls_hold_back_neither_other_tools_nor_other_rollouts(
    chat_format: ChatFormat, tokenizer: Tokenizer
):
    """More calls hang than there are slots for calls in all, yet calls of another tool go through."""
    stuck = ToolSpec("stuck", "", SCHEMA, ToolLimits(max_concurrent=2))
    quick = ToolSpec("quick", "", SCHEMA)
    hanging: list[ToolInvocation] = []

    async def execute(invocation: ToolInvocation) -> ToolResult:
        if invocation.name == "quick":
            return ToolResult(ToolStatus.OK, "1")
        hanging.append(invocation)
        return await never(invocation)

    def script(request: GenerationRequest) -> list[int]:
        name = "stuck" if request.noise.sample_index < 20 else "quick"
        return tokenizer.encode((call(name) * 2 if request.noise.turn == 0 else "done") + END)

    engine = ScriptedEngine(script, deterministic=False)
    loop = AgentLoop(engine, chat_format, tokenizer, Tools(execute, stuck, quick), max_tool_calls=4)
    rollouts = batch(loop, samples=40).__aiter__()
    done = [await anext(rollouts) for _ in range(20)]
    assert sorted(t.sample_index for t in done) == list(range(20, 40))
    assert len(hanging) == 2
    await rollouts.aclose()  # type: ignore[attr-defined]


async def test_a_tools_own_limits_make_those_of_the_request_stricter(make):
    seen: list[ToolInvocation] = []

    async def execute(invocation: ToolInvocation) -> ToolResult:
        seen.append(invocation)
        return ToolResult(ToolStatus.OK, "x" * 100)

    limited = ToolSpec("f", "", SCHEMA, ToolLimits(wall_seconds=1.0, memory_bytes=500, max_output_tokens=10))
    loop = make(call("f"), Tools(execute, limited))
    for settings, expected in ((ToolSettings(wall_seconds=5.0), (1.0, 500)), (ToolSettings(True, 0.5, 20), (0.5, 20))):
        (t,) = await collect(batch(loop, tools=settings, max_tool_output_tokens=50))
        assert (seen[-1].wall_seconds, seen[-1].memory_bytes) == expected
        assert t.tool_calls[0].truncated
        assert t.tool_calls[0].response.count("x") == 10


async def test_any_text_of_a_tool_can_be_recorded(make):
    async def execute(invocation: ToolInvocation) -> ToolResult:
        return ToolResult(ToolStatus.OK, "half a pair: \ud800")

    (t,) = await collect(batch(make(call(PYTHON_TOOL.name), Tools(execute))))
    assert t.tool_calls[0].response.encode() == "half a pair: \N{REPLACEMENT CHARACTER}".encode()


def test_a_group_is_one_problem(make):
    loop = make("", Tools(answer))
    problems = [ProblemRequest("p", "g", "?"), ProblemRequest("q", "g", "?")]
    with pytest.raises(UserInputError, match="g: p and q"):
        loop.batch(problems, SamplingSettings(), RolloutLimits(), ToolSettings())


def test_a_rollout_is_made_once(make):
    loop = make("", Tools(answer))
    problems = [ProblemRequest("p", "g", "?", 2), ProblemRequest("p", "g", "?", 2, first_sample_index=1)]
    with pytest.raises(UserInputError, match="g/1"):
        loop.batch(problems, SamplingSettings(), RolloutLimits(), ToolSettings())


def test_lost_samples_of_a_group_may_be_asked_for_apart(make):
    loop = make("", Tools(answer))
    problems = [ProblemRequest("p", "g", "?", 1), ProblemRequest("p", "g", "?", 2, first_sample_index=4)]
    assert len(loop.batch(problems, SamplingSettings(), RolloutLimits(), ToolSettings())) == 3
