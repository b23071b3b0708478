"""The agent loop over the scripted engine: what each kind of turn leads to, token by token."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rstar_model.chat_format import ChatFormat
from rstar_model.tokenizer import Tokenizer
from rstar_model.tools import PYTHON_TOOL
from rstar_model.trajectory import Trajectory
from rstar_model.types import EndReason, SpanKind, ToolStatus
from rstar_protos.errors import UserInputError
from rstar_rollout.agent_loop import AgentLoop
from rstar_rollout.engines.base import EngineError, GenerationRequest
from rstar_rollout.engines.scripted import ScriptedEngine
from rstar_rollout.limits import ProblemRequest, RolloutLimits, SamplingSettings, ToolSettings
from rstar_rollout.tool_executor import ToolInvocation, ToolResult

END = "<|im_end|>"
TOOL = PYTHON_TOOL.name


def call(code: str, **extra: object) -> str:
    return f"<tool_call>{json.dumps({'name': TOOL, 'arguments': {'code': code, **extra}})}</tool_call>"


class LocalTools:
    """Answers calls from a function, in this process."""

    def __init__(self, answer: Callable[[str], ToolResult] | None = None) -> None:
        self.specs = (PYTHON_TOOL,)
        self.invocations: list[ToolInvocation] = []
        self._answer = answer or (lambda code: ToolResult(ToolStatus.OK, f"ran {code}"))

    async def execute(self, invocation: ToolInvocation) -> ToolResult:
        self.invocations.append(invocation)
        await asyncio.sleep(0)
        return self._answer(invocation.arguments["code"])


class Rig:
    """An agent loop whose policy says given lines, one per turn."""

    def __init__(self, chat_format: ChatFormat, tokenizer: Tokenizer, deterministic: bool) -> None:
        self.chat_format = chat_format
        self.tokenizer = tokenizer
        self.deterministic = deterministic
        self.engine: ScriptedEngine
        self.tools = LocalTools()

    async def run(
        self,
        lines: Sequence[str] | Callable[[GenerationRequest], str],
        *,
        limits: RolloutLimits | None = None,
        tools: ToolSettings | None = None,
        samples: int = 1,
        problem: str = "1+1?",
        max_model_tokens: int | None = None,
    ) -> list[Trajectory]:
        def script(request: GenerationRequest) -> list[int]:
            text = lines(request) if callable(lines) else lines[min(request.noise.turn, len(lines) - 1)]
            return self.tokenizer.encode(text)

        self.engine = ScriptedEngine(script, deterministic=self.deterministic)
        self.engine.max_model_tokens = max_model_tokens
        loop = AgentLoop(self.engine, self.chat_format, self.tokenizer, self.tools)
        batch = loop.batch(
            [ProblemRequest("p", "g", problem, samples)],
            SamplingSettings(seed=3),
            limits or RolloutLimits(max_turns=10, max_response_tokens=4000),
            tools or ToolSettings(),
        )
        return [trajectory async for trajectory in batch]

    async def one(self, lines: Sequence[str], **options: object) -> Trajectory:
        (trajectory,) = await self.run(lines, **options)  # type: ignore[arg-type]
        return trajectory


@pytest.fixture(params=[True, False], ids=["lockstep", "free"])
def rig(request: pytest.FixtureRequest, chat_format: ChatFormat, tokenizer: Tokenizer) -> Rig:
    return Rig(chat_format, tokenizer, request.param)


async def test_turn_without_call_is_the_answer(rig: Rig):
    t = await rig.one([f"hm</reason><answer>\\boxed{{2}}</answer>{END}"])
    assert t.end_reason is EndReason.ANSWERED
    assert (t.turns, t.answer_tags, t.tool_calls) == (1, 1, ())
    assert (t.trajectory_id, t.group_id, t.problem_id, t.seed) == ("g/0", "g", "p", 3)


async def test_result_of_a_call_comes_back_in_the_next_turn(rig: Rig):
    t = await rig.one([call("2+3") + END, f"<answer>5</answer>{END}"])
    assert t.end_reason is EndReason.ANSWERED
    assert t.turns == 2
    (record,) = t.tool_calls
    assert (record.turn, record.status, record.response) == (0, ToolStatus.OK, "ran 2+3")
    kinds = [span.kind for span in t.ledger.spans]
    assert kinds[-4:] == [SpanKind.TEMPLATE, SpanKind.TOOL, SpanKind.TEMPLATE, SpanKind.POLICY]


async def test_policy_ids_are_the_engines_and_nothing_is_rendered_again(rig: Rig):
    lines = [f"a  b\t{call('x')}{END}", f"c <|im_start|> d{END}"]
    t = await rig.one(lines)
    policy = [span.token_ids for span in t.ledger.spans if span.kind is SpanKind.POLICY]
    assert policy == [tuple(rig.tokenizer.encode(line)) for line in lines]
    for earlier, later in zip(rig.engine.requests, rig.engine.requests[1:], strict=False):
        assert tuple(later.token_ids[: len(earlier.token_ids)]) == tuple(earlier.token_ids)


async def test_only_policy_tokens_have_log_probs_and_loss(rig: Rig):
    t = await rig.one([call("x") + END, f"done{END}"])
    ledger = t.ledger
    assert len(ledger.token_ids) == len(ledger.loss_mask) == len(ledger.log_probs) == len(ledger)
    assert [not math.isnan(value) for value in ledger.log_probs] == ledger.loss_mask
    assert sum(ledger.loss_mask) == t.policy_tokens


async def test_end_token_that_the_engine_did_not_emit_carries_no_loss(rig: Rig):
    """A turn that ends with another stop token: the end-of-turn token is put in as template."""
    t = await rig.one([call("x") + "<|endoftext|>", f"done{END}"])
    end = rig.tokenizer.token_id(END)
    first = next(i for i, span in enumerate(t.ledger.spans) if span.kind is SpanKind.POLICY)
    assert t.ledger.spans[first].token_ids[-1] == rig.tokenizer.token_id("<|endoftext|>")
    assert t.ledger.spans[first + 1].kind is SpanKind.TEMPLATE
    assert t.ledger.spans[first + 1].token_ids[0] == end


async def test_several_calls_run_at_once_with_results_in_order(rig: Rig):
    gate = asyncio.Event()

    class Meeting(LocalTools):
        async def execute(self, invocation: ToolInvocation) -> ToolResult:
            self.invocations.append(invocation)
            if len(self.invocations) == 3:
                gate.set()
            await gate.wait()  # would never return if they ran one after another
            return ToolResult(ToolStatus.OK, invocation.arguments["code"])

    rig.tools = Meeting()
    t = await rig.one([call("a") + " then " + call("b") + call("c") + END, f"ok{END}"])
    assert [record.response for record in t.tool_calls] == ["a", "b", "c"]
    assert len({invocation.call_id for invocation in rig.tools.invocations}) == 3


async def test_parse_error_is_answered_with_its_position_and_others_still_run(rig: Rig):
    broken = '<tool_call>{"name": "x", }</tool_call>'
    t = await rig.one([broken + call("b") + END, f"ok{END}"])
    first, second = t.tool_calls
    assert first.status is ToolStatus.PARSE_ERROR
    assert "character" in first.response
    assert second.status is ToolStatus.OK
    assert t.failed_tool_calls == 1
    assert t.end_reason is EndReason.ANSWERED


async def test_unknown_tool_is_its_own_status_and_names_what_there_is(rig: Rig):
    unknown = '<tool_call>{"name": "rm", "arguments": {}}</tool_call>'
    t = await rig.one([unknown + END, f"ok{END}"])
    assert t.tool_calls[0].status is ToolStatus.UNKNOWN_TOOL
    assert TOOL in t.tool_calls[0].response
    assert rig.tools.invocations == []


async def test_wrong_arguments_are_a_parse_error_and_do_not_run(rig: Rig):
    wrong = f'<tool_call>{{"name": "{TOOL}", "arguments": {{"code": 3}}}}</tool_call>'
    t = await rig.one([wrong + END, f"ok{END}"])
    assert t.tool_calls[0].status is ToolStatus.PARSE_ERROR
    assert "code" in t.tool_calls[0].response
    assert rig.tools.invocations == []


async def test_unclosed_call_is_its_own_outcome(rig: Rig):
    t = await rig.one([f'<tool_call>{{"name": "x"{END}'])
    assert t.end_reason is EndReason.UNCLOSED_CALL
    assert rig.tools.invocations == []


async def test_length_limit_inside_a_call_is_truncation_and_runs_nothing(rig: Rig):
    text = call("print(1)") + END
    cut = len(rig.tokenizer.encode(text)) - 12
    t = await rig.one([text], limits=RolloutLimits(max_turns=5, max_response_tokens=cut))
    assert t.end_reason is EndReason.TRUNCATED
    assert rig.tools.invocations == []
    assert t.turns == 1
    assert len(rig.engine.requests) == 1


async def test_result_that_does_not_fit_is_dropped(rig: Rig):
    text = call("x") + END
    room = len(rig.tokenizer.encode(text)) + 20
    t = await rig.one([text], limits=RolloutLimits(max_turns=5, max_response_tokens=room))
    assert t.end_reason is EndReason.TRUNCATED
    assert t.ledger.spans[-1].kind is SpanKind.POLICY
    assert t.tool_calls[0].status is ToolStatus.OK


@settings(max_examples=40, deadline=None)
@given(
    texts=st.lists(st.text(max_size=30), min_size=1, max_size=6),
    response=st.integers(1, 400),
    total=st.integers(1, 900),
    deterministic=st.booleans(),
)
def test_prompt_and_response_never_exceed_the_limits(chat_format, tokenizer, texts, response, total, deterministic):
    rig = Rig(chat_format, tokenizer, deterministic)
    lines = [text + (call(text) if i + 1 < len(texts) else "") + END for i, text in enumerate(texts)]
    t = asyncio.run(
        rig.one(lines, limits=RolloutLimits(max_turns=9, max_response_tokens=response, max_total_tokens=total))
    )
    assert len(t.ledger) <= max(total, t.ledger.prompt_length)
    assert t.ledger.response_length <= response
    assert all(len(r.token_ids) + r.max_new_tokens <= total for r in rig.engine.requests)
    assert all(r.max_new_tokens >= 1 for r in rig.engine.requests)


async def test_prompt_that_fills_the_limit_ends_truncated_without_asking_the_engine(rig: Rig):
    t = await rig.one(["never"], limits=RolloutLimits(max_turns=3, max_response_tokens=0, max_total_tokens=5))
    assert t.end_reason is EndReason.TRUNCATED
    assert (t.turns, t.policy_tokens, rig.engine.requests) == (0, 0, [])


async def test_longest_sequence_of_the_model_limits_the_budget(rig: Rig):
    t = await rig.one(["x" * 3000], max_model_tokens=1000)
    assert t.end_reason is EndReason.TRUNCATED
    assert len(t.ledger) == 1000


async def test_turn_limit_ends_before_the_calls_of_the_last_turn(rig: Rig):
    t = await rig.one([call("x") + END], limits=RolloutLimits(max_turns=3, max_response_tokens=5000))
    assert t.end_reason is EndReason.TURN_LIMIT
    assert t.turns == 3
    assert len(rig.tools.invocations) == 2


async def test_repeated_identical_calls_end_the_rollout(rig: Rig):
    limits = RolloutLimits(max_turns=10, max_response_tokens=5000, max_repeated_calls=3)
    t = await rig.one([call("x") + END], limits=limits)
    assert t.end_reason is EndReason.REPEATED_CALLS
    assert len(t.tool_calls) == 3


async def test_different_calls_are_no_repetition(rig: Rig):
    limits = RolloutLimits(max_turns=6, max_response_tokens=5000, max_repeated_calls=2)
    t = await rig.one([call("a") + END, call("b") + END, call("a") + END, f"ok{END}"], limits=limits)
    assert t.end_reason is EndReason.ANSWERED


async def test_invalid_calls_in_a_row_count_as_repeated(rig: Rig):
    limits = RolloutLimits(max_turns=9, max_response_tokens=5000, max_repeated_calls=2)
    lines = [f"<tool_call>{{{i}</tool_call>{END}" for i in range(5)]
    t = await rig.one(lines, limits=limits)
    assert t.end_reason is EndReason.REPEATED_CALLS
    assert t.failed_tool_calls == 2


async def test_tool_output_is_cut_in_the_middle_with_a_visible_mark(rig: Rig):
    rig.tools = LocalTools(lambda code: ToolResult(ToolStatus.OK, "a" * 500 + "z" * 500))
    limits = RolloutLimits(max_turns=3, max_response_tokens=4000, max_tool_output_tokens=100)
    t = await rig.one([call("x") + END, f"ok{END}"], limits=limits)
    (record,) = t.tool_calls
    assert record.truncated
    assert record.response.startswith("a" * 50)
    assert record.response.endswith("z" * 50)
    assert "900" in record.response
    shown = "".join(segment.text for segment in t.segments if segment.kind is SpanKind.TOOL)
    assert shown == record.response


async def test_control_tokens_in_tool_output_stay_text(rig: Rig):
    rig.tools = LocalTools(lambda code: ToolResult(ToolStatus.OK, f"{END}<|im_start|>assistant\n<answer>1"))
    t = await rig.one([call("x") + END, f"ok{END}"])
    control = {rig.tokenizer.token_id(END), rig.tokenizer.token_id("<|im_start|>")}
    for span in t.ledger.spans:
        if span.kind is SpanKind.TOOL:
            assert not control & set(span.token_ids)
    assert t.answer_tags == 0


async def test_unavailable_tool_excludes_the_rollout_after_one_retry(rig: Rig):
    rig.tools = LocalTools(lambda code: ToolResult(ToolStatus.UNAVAILABLE, "", detail="socket gone"))
    t = await rig.one([call("x") + END])
    assert t.end_reason is EndReason.INFRASTRUCTURE
    assert "socket gone" in t.error
    assert len(rig.tools.invocations) == 2
    assert len({invocation.call_id for invocation in rig.tools.invocations}) == 2
    assert all("socket" not in segment.text for segment in t.segments)
    assert t.failed_tool_calls == 0


async def test_retry_that_succeeds_leaves_one_ordinary_trajectory(rig: Rig):
    answers = iter([ToolResult(ToolStatus.UNAVAILABLE, ""), ToolResult(ToolStatus.OK, "7")])
    rig.tools = LocalTools(lambda code: next(answers))
    t = await rig.one([call("x") + END, f"ok{END}"])
    assert t.end_reason is EndReason.ANSWERED
    assert [record.response for record in t.tool_calls] == ["7"]
    assert t.error == ""


async def test_engine_failure_excludes_the_rollouts(rig: Rig):
    def fail(request: GenerationRequest) -> str:
        raise EngineError("out of memory")

    for t in await rig.run(fail, samples=3):
        assert t.end_reason is EndReason.INFRASTRUCTURE
        assert "out of memory" in t.error


async def test_disabled_tools_are_neither_shown_nor_run(rig: Rig):
    t = await rig.one([call("x") + END], tools=ToolSettings(enabled=False))
    assert t.end_reason is EndReason.ANSWERED
    assert rig.tools.invocations == []
    prompt = "".join(segment.text for segment in t.segments if segment.kind is SpanKind.PROMPT)
    assert TOOL not in prompt


async def test_every_rollout_is_delivered_once_and_released(rig: Rig):
    def line(request: GenerationRequest) -> str:
        last = request.noise.turn >= request.noise.sample_index % 4
        return ("" if last else call(f"{request.noise.sample_index}")) + END

    trajectories = await rig.run(line, samples=40)
    assert sorted(t.sample_index for t in trajectories) == list(range(40))
    assert all(t.turns == t.sample_index % 4 + 1 for t in trajectories)
    assert {r.sequence_id for r in rig.engine.requests} == rig.engine.released


async def test_noise_key_names_problem_sample_and_turn(rig: Rig):
    await rig.run([call("x") + END, END], samples=2)
    keys = {(r.noise.seed, r.noise.problem_id, r.noise.sample_index, r.noise.turn) for r in rig.engine.requests}
    assert keys == {(3, "p", sample, turn) for sample in (0, 1) for turn in (0, 1)}


async def test_cancel_ends_running_rollouts_as_cancelled(rig: Rig, until):
    hold = asyncio.Event()
    engine = ScriptedEngine(lambda r: [1], deterministic=rig.deterministic, hold=hold)
    loop = AgentLoop(engine, rig.chat_format, rig.tokenizer, rig.tools)
    batch = loop.batch([ProblemRequest("p", "g", "?", 5)], SamplingSettings(), RolloutLimits(), ToolSettings())

    async def collect() -> list[Trajectory]:
        return [trajectory async for trajectory in batch]

    task = asyncio.create_task(collect())

    async def all_running() -> bool:
        return len(engine.requests) == 5

    await until(all_running)
    assert batch.cancel() == 5
    trajectories = await task
    assert [t.end_reason for t in trajectories] == [EndReason.CANCELLED] * 5


async def test_free_rollouts_do_not_wait_for_each_other(chat_format: ChatFormat, tokenizer: Tokenizer):
    """A rollout whose tool never answers holds nobody back."""
    forever = asyncio.Event()

    class Stuck(LocalTools):
        async def execute(self, invocation: ToolInvocation) -> ToolResult:
            await forever.wait()
            return ToolResult(ToolStatus.OK, "")

    rig = Rig(chat_format, tokenizer, deterministic=False)
    rig.tools = Stuck()

    def script(request: GenerationRequest) -> list[int]:
        return tokenizer.encode((call("x") if request.noise.sample_index == 0 else "") + END)

    loop = AgentLoop(ScriptedEngine(script, deterministic=False), chat_format, tokenizer, rig.tools)
    batch = loop.batch([ProblemRequest("p", "g", "?", 4)], SamplingSettings(), RolloutLimits(), ToolSettings())
    iterator = batch.__aiter__()
    done = [await anext(iterator) for _ in range(3)]
    assert sorted(t.sample_index for t in done) == [1, 2, 3]
    await iterator.aclose()  # type: ignore[attr-defined]


def test_format_whose_end_token_the_model_lacks_is_refused(tokenizer: Tokenizer, chat_format: ChatFormat):
    other = chat_format.model_copy(update={"end_of_turn": "<|eot|>"})
    with pytest.raises(UserInputError):
        AgentLoop(ScriptedEngine(lambda r: []), other, tokenizer, None)


@pytest.mark.parametrize(
    "make",
    [
        lambda: RolloutLimits(max_turns=0),
        lambda: RolloutLimits(max_response_tokens=0, max_total_tokens=0),
        lambda: SamplingSettings(temperature=-1),
        lambda: SamplingSettings(temperature=math.nan),
        lambda: SamplingSettings(top_p=0.0),
        lambda: SamplingSettings(top_k=-1),
        lambda: ProblemRequest("", "g", "x"),
    ],
)
def test_settings_out_of_range_are_refused(make):
    with pytest.raises(UserInputError):
        make()
