"""A rollout that was stopped goes on as if nothing had happened, wherever it was stopped; and when it is stopped."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rstar_model.chat_format import ChatFormat
from rstar_model.tokenizer import Tokenizer
from rstar_model.tools import PYTHON_TOOL
from rstar_model.trajectory import ToolCallRecord, Trajectory
from rstar_model.types import EndReason, SpanKind, ToolStatus
from rstar_protos.errors import UserInputError
from rstar_rollout.agent_loop import AgentLoop
from rstar_rollout.continuation import StopRule, count_repeat
from rstar_rollout.engines.base import GenerationRequest, GenerationResult, TokenCallback, WeightSource
from rstar_rollout.engines.scripted import ScriptedEngine
from rstar_rollout.engines.transformers_engine import TransformersEngine, TransformersSettings
from rstar_rollout.limits import ProblemRequest, RolloutLimits, SamplingSettings, ToolSettings
from rstar_rollout.tool_executor import ToolInvocation, ToolResult

END = "<|im_end|>"
LIMITS = RolloutLimits(max_turns=5, max_response_tokens=2000, max_repeated_calls=3)


def call(code: str) -> str:
    return f"<tool_call>{json.dumps({'name': PYTHON_TOOL.name, 'arguments': {'code': code}})}</tool_call>"


class Tools:
    """Answers at once, unless it has been told to hang."""

    def __init__(self) -> None:
        self.specs = (PYTHON_TOOL,)
        self.hangs = False
        self.called = asyncio.Event()
        self.codes: list[str] = []

    async def execute(self, invocation: ToolInvocation) -> ToolResult:
        self.codes.append(invocation.arguments["code"])
        self.called.set()
        if self.hangs:
            await asyncio.Event().wait()
        return ToolResult(ToolStatus.OK, f"ran {invocation.arguments['code']}")


class CutEngine(ScriptedEngine):
    """Is stopped once, after some tokens of all that it says."""

    left: int | None = None

    async def generate(self, request: GenerationRequest, on_tokens: TokenCallback | None = None) -> GenerationResult:
        result = await super().generate(request, on_tokens)
        if self.left is None or len(result.token_ids) <= self.left:
            self.left = None if self.left is None else self.left - len(result.token_ids)
            return result
        said, self.left = self.left, None
        return replace(result, token_ids=result.token_ids[:said], log_probs=(-1.0,) * said, finish_reason="aborted")


class Rig:
    """An agent loop whose policy says given lines, one per turn, to every sample."""

    def __init__(self, chat_format: ChatFormat, tokenizer: Tokenizer, lines: Sequence[str], deterministic: bool):
        self.tools = Tools()
        turns = [tokenizer.encode(line) for line in lines]
        self.engine = CutEngine(lambda request: turns[min(request.noise.turn, len(turns) - 1)])
        self.engine.deterministic = deterministic
        self.loop = AgentLoop(self.engine, chat_format, tokenizer, self.tools)

    def batch(self, *partial: Trajectory, prompt: str = "1+1?"):
        problem = ProblemRequest("p", "g", prompt, partial=partial)
        return self.loop.batch([problem], SamplingSettings(seed=1), LIMITS, ToolSettings())

    async def run(self, *partial: Trajectory, left: int | None = None) -> Trajectory:
        self.engine.left = left
        (trajectory,) = [t async for t in self.batch(*partial)]
        return trajectory


@pytest.fixture(params=[True, False], ids=["lockstep", "free"])
def make(request: pytest.FixtureRequest, chat_format: ChatFormat, tokenizer: Tokenizer):
    return lambda *lines: Rig(chat_format, tokenizer, lines, request.param)


async def with_version(engine: ScriptedEngine, version: int) -> None:
    await engine.begin_weight_update(version, WeightSource("/"))
    await engine.commit_weight_update(version, "checksum")


def same(trajectory: Trajectory) -> tuple[object, ...]:
    """What must not depend on whether a rollout was stopped."""
    t = trajectory
    return t.ledger.token_ids, t.ledger.kinds, t.segments, t.tool_calls, t.end_reason, t.turns, t.answer_tags


lines = st.sampled_from(
    [call("1"), call("2"), call("é") + call("😀"), "<tool_call>{", "😀 <answer>3</answer>", "", "no such"]
)


@settings(max_examples=60, deadline=None)
@given(st.lists(lines, min_size=1, max_size=4), st.data(), st.booleans())
def test_rollout_stopped_at_any_token_goes_on_as_if_nothing_had_happened(
    chat_format: ChatFormat, tokenizer: Tokenizer, said: list[str], data: st.DataObject, deterministic: bool
):
    async def check() -> None:
        rig = Rig(chat_format, tokenizer, [line + END for line in said], deterministic)
        whole = await rig.run()
        partial = await rig.run(left=data.draw(st.integers(0, whole.policy_tokens - 1)))
        assert partial.end_reason is EndReason.CANCELLED
        assert same(await rig.run(partial)) == same(whole)

    asyncio.run(check())


async def test_rollout_may_be_stopped_again_and_again(make):
    rig = make(call("1") + END, "😀 done" + END)
    whole = await rig.run()
    trajectory = await rig.run(left=1)
    while trajectory.end_reason is EndReason.CANCELLED:
        trajectory = await rig.run(trajectory, left=7)
    assert same(trajectory) == same(whole)


async def test_each_part_of_a_turn_says_which_weights_wrote_it(make):
    rig = make("a long answer" + END)
    await with_version(rig.engine, 4)
    partial = await rig.run(left=6)
    await with_version(rig.engine, 5)
    ledger = (await rig.run(partial)).ledger
    spans = [span for span in ledger.spans if span.kind is SpanKind.POLICY]
    assert [(len(span), span.weight_version, span.turn) for span in spans] == [(6, 4, 0), (8, 5, 0)]
    assert spans[0].log_probs == (-1.0,) * 6


async def test_calls_that_were_running_are_run_again(make):
    rig = make(call("1") + call("2") + END, "done" + END)
    whole = await rig.run()
    rig.tools.hangs = True
    rig.tools.called.clear()
    rollouts = rig.batch()
    running = asyncio.ensure_future(anext(rollouts.__aiter__()))
    await rig.tools.called.wait()
    rollouts.cancel()
    partial = await running
    assert (partial.end_reason, partial.turns, partial.tool_calls) == (EndReason.CANCELLED, 1, ())
    rig.tools.hangs = False
    assert same(await rig.run(partial)) == same(whole)


async def test_engine_is_told_what_it_continues(make):
    rig = make("a long answer" + END)
    await rig.run(await rig.run(left=6))
    first, second = rig.engine.requests
    assert tuple(second.token_ids[:-6]) == tuple(first.token_ids)
    assert (second.response_tokens, second.noise.position, second.noise.turn) == (6, 6, 0)
    assert second.max_new_tokens == first.max_new_tokens - 6


async def test_wall_time_is_that_of_all_parts(make):
    rig = make("answer" + END)
    partial = replace(await rig.run(left=2), wall_seconds=100.0)
    assert (await rig.run(partial)).wall_seconds > 100.0


async def test_rollout_of_another_prompt_is_refused(make):
    rig = make("answer" + END)
    partial = await rig.run(left=2)
    with pytest.raises(UserInputError, match="g/0"):
        rig.batch(partial, prompt="2+2?")


@pytest.mark.parametrize(
    "change",
    [{"end_reason": EndReason.ANSWERED}, {"sample_index": 1}, {"problem_id": "q"}, {"group_id": "h"}],
    ids=str,
)
async def test_rollout_that_is_not_a_stopped_one_of_the_problem_is_refused(make, change: dict[str, object]):
    partial = await make("answer" + END).run(left=2)
    with pytest.raises(UserInputError, match="partial"):
        ProblemRequest("p", "g", "1+1?", partial=(replace(partial, **change),))


async def test_two_states_of_one_rollout_are_refused(make):
    partial = await make("answer" + END).run(left=2)
    with pytest.raises(UserInputError, match="one rollout a sample"):
        ProblemRequest("p", "g", "1+1?", partial=(partial, partial))


def test_rule_waits_for_whole_groups():
    rule = StopRule(["a", "a", "b"], 1)
    rule.ended("a")
    assert not rule.reached
    rule.ended("a")
    assert rule.reached


def test_rule_waits_for_what_must_finish():
    rule = StopRule(["a", "b", "c"], 1, ["c"])
    rule.ended("a")
    rule.ended("b")
    assert not rule.reached
    rule.ended("c")
    assert rule.reached


@pytest.mark.parametrize("stop_after", [0, 5])
def test_rule_that_stops_nobody_waits_for_all(stop_after: int):
    rule = StopRule("ab", stop_after)
    rule.ended("a")
    assert not rule.reached


async def test_lockstep_is_stopped_between_its_rounds(chat_format: ChatFormat, tokenizer: Tokenizer):
    """Group `a` answers in its first turn, `b` and `c` in their third: equal, however often it is run."""

    def script(request: GenerationRequest) -> list[int]:
        last = request.noise.problem_id == "a" or request.noise.turn == 2
        return tokenizer.encode(("" if last else call("1")) + END)

    loop = AgentLoop(ScriptedEngine(script), chat_format, tokenizer, Tools())
    problems = [ProblemRequest(name, name, "?", 2) for name in "abc"]

    async def run() -> list[Trajectory]:
        batch = loop.batch(problems, SamplingSettings(), LIMITS, ToolSettings(), stop_after_groups=1)
        return [t async for t in batch]

    found = await run()
    assert [same(t) for t in found] == [same(t) for t in await run()]
    ends = {(t.group_id, t.end_reason, t.turns, len(t.tool_calls)) for t in found}
    stopped = EndReason.CANCELLED
    assert ends == {("a", EndReason.ANSWERED, 1, 0), ("b", stopped, 1, 1), ("c", stopped, 1, 1)}


async def test_language_model_draws_what_it_would_have_drawn(
    tiny_model: Path, chat_format: ChatFormat, tokenizer: Tokenizer
):
    async def run(budget: int, *partial: Trajectory) -> Trajectory:
        problem = ProblemRequest("p", "g", "1+1?", partial=partial)
        limits = RolloutLimits(max_response_tokens=budget)
        batch = loop.batch([problem], SamplingSettings(seed=7), limits, ToolSettings(enabled=False))
        (trajectory,) = [t async for t in batch]
        return trajectory

    engine = TransformersEngine(tiny_model, TransformersSettings(dtype="float32", threads=1))
    await engine.start()
    loop = AgentLoop(engine, chat_format, tokenizer, None)
    whole = await run(40)
    partial = replace(await run(17), end_reason=EndReason.CANCELLED)
    continued = await run(40, partial)
    assert (whole.policy_tokens, continued.policy_tokens) == (40, 40)
    assert continued.ledger.token_ids == whole.ledger.token_ids
    assert continued.ledger.log_probs[-23:] == pytest.approx(whole.ledger.log_probs[-23:], abs=1e-4)
    await engine.shutdown()


def test_runs_of_equal_calls_are_counted_by_what_was_called_and_faults_of_machines_are_passed_over() -> None:
    def record(status: ToolStatus, arguments: str = "{}") -> ToolCallRecord:
        return ToolCallRecord(0, "f", arguments, status, "", 0.0, 0.0, False)

    run, last = 0, None
    lengths = []
    for call in (
        record(ToolStatus.OK),
        record(ToolStatus.ERROR),
        record(ToolStatus.UNAVAILABLE),
        record(ToolStatus.OK),
        record(ToolStatus.OK, '{"a": 1}'),
        record(ToolStatus.PARSE_ERROR, "x"),
        record(ToolStatus.UNKNOWN_TOOL, "y"),
    ):
        run, last = count_repeat(run, last, call)
        lengths.append(run)
    assert lengths == [1, 2, 2, 3, 1, 1, 2]
