"""Faults that users of other systems met, by the thread that reports them: here each has its right behaviour.

Those that concern objective, advantages and metrics are in the trainer's tests.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers

from rstar_model.chat_format import ChatFormat
from rstar_model.testing import write_family
from rstar_model.tokenizer import Tokenizer, load_tokenizer
from rstar_model.tools import PYTHON_TOOL
from rstar_model.trajectory import Trajectory, from_json_dict, to_json_dict
from rstar_model.types import EndReason, SpanKind, ToolStatus
from rstar_protos.errors import UserInputError
from rstar_rollout.agent_loop import AgentLoop
from rstar_rollout.engines.base import GenerationRequest
from rstar_rollout.engines.scripted import ScriptedEngine
from rstar_rollout.limits import ProblemRequest, RolloutLimits, SamplingSettings, ToolSettings
from rstar_rollout.roc import Mode, ScoredRollout, resample_on_correct
from rstar_rollout.roc_groups import SelectionOutcome, select_groups
from rstar_rollout.tool_executor import ToolInvocation, ToolResult

END = "<|im_end|>"
OK = ToolResult(ToolStatus.OK, "4")


def call(code: str) -> str:
    return f"<tool_call>{json.dumps({'name': PYTHON_TOOL.name, 'arguments': {'code': code}})}</tool_call>"


class Agent:
    """A policy that says the given lines, the last one for ever, with a tool that gives one result."""

    def __init__(self, tokenizer: Tokenizer, lines: list[str], result: ToolResult = OK, form: str = "rstar") -> None:
        self.lines, self.result, self.ran = lines, result, list[ToolInvocation]()
        self.specs = (PYTHON_TOOL,)
        self.tokenizer = tokenizer
        self.engine = ScriptedEngine(self._say, deterministic=False)
        self.loop = AgentLoop(self.engine, ChatFormat.load(form), tokenizer, self)

    def _say(self, request: GenerationRequest) -> list[int]:
        return self.tokenizer.encode(self.lines[min(request.noise.turn, len(self.lines) - 1)])

    async def execute(self, invocation: ToolInvocation) -> ToolResult:
        self.ran.append(invocation)
        return self.result

    def run(self, temperature: float = 1.0, **limits: int) -> Trajectory:
        async def one() -> Trajectory:
            settings = RolloutLimits(**{"max_turns": 5, **limits})
            problems, sampling = [ProblemRequest("p", "g", "?")], SamplingSettings(temperature)
            (found,) = [t async for t in self.loop.batch(problems, sampling, settings, ToolSettings())]
            return found

        return asyncio.run(one())


Make = Callable[..., Agent]


@pytest.fixture
def agent(tokenizer: Tokenizer) -> Make:
    return lambda *lines, **options: Agent(tokenizer, list(lines), **options)


# -- tokens and masks -------------------------------------------------------------------------------------------------


def test_verl_3477_and_trl_6361_thinking_of_earlier_turns_stays(tmp_path: Path):
    """A template that drops it is detected, and the next turn still goes on from the tokens of the last."""
    tokenizer = load_tokenizer(write_family(tmp_path / "qwen3", "qwen3"))
    rig = Agent(tokenizer, [f"<think>\nA plan.\n</think>\n\n{call('1')}{END}", f"done{END}"], form="qwen3")
    assert not rig.loop.template_report.preserves_prefixes
    rig.run()
    first, second = rig.engine.requests
    said = tokenizer.encode(rig.lines[0])
    assert list(second.token_ids[: len(first.token_ids) + len(said)]) == [*first.token_ids, *said]


def test_verl_3960_calls_are_trained_on_as_they_were_written(agent: Make):
    """White space, order of keys and escapes of a call are the policy's, whatever its parsed form looks like."""
    line = f'x <tool_call>  {{"arguments":{{"code" : "\\u0031"}},\n"name": "{PYTHON_TOOL.name}"}}\t</tool_call>{END}'
    rig = agent(line, f"done{END}")
    t = rig.run()
    assert t.tool_calls[0].status is ToolStatus.OK
    policy = next(span for span in t.ledger.spans if span.kind is SpanKind.POLICY)
    assert list(policy.token_ids) == rig.tokenizer.encode(line)


def test_slime_1477_mask_and_ids_are_equally_long_after_storage(agent: Make):
    t = agent(call("1") + END, f"done{END}").run()
    for ledger in (t.ledger, from_json_dict(json.loads(json.dumps(to_json_dict(t)))).ledger):
        assert len(ledger.loss_mask) == len(ledger.token_ids) == len(ledger.log_probs)
        assert ledger.prompt_length == len(ledger.token_ids) - ledger.response_length
        assert not any(ledger.loss_mask[: ledger.prompt_length])


def test_miles_1827_a_rollout_that_ends_in_a_tool_result_keeps_its_policy_tokens(agent: Make):
    """The last token is masked; what carries the signal is there all the same."""
    rig = agent(call("1") + END)
    t = rig.run(max_turns=9, max_response_tokens=2 * len(rig.tokenizer.encode(call("1") + END)) + 60)
    assert t.end_reason is EndReason.TRUNCATED
    assert t.policy_tokens == sum(t.ledger.loss_mask) > 0


def test_skyrl_570_an_end_token_that_was_put_in_carries_no_loss(agent: Make):
    rig = agent(call("1") + "<|endoftext|>", f"done{END}")
    t = rig.run()
    end = rig.tokenizer.token_id(END)
    loss = [mask for token, mask in zip(t.ledger.token_ids, t.ledger.loss_mask, strict=True) if token == end]
    assert loss[-3:] == [False, False, True]  # put in after the call, after the result, written by the policy


# -- tool calls -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("behind", [' {"name": "f", "arguments": {}}', " and some text"])
def test_vllm_17790_more_than_one_object_in_a_call_is_answered_and_others_run(agent: Make, behind: str):
    broken = call("1").replace("</tool_call>", behind + "</tool_call>")
    rig = agent(call("a") + broken + call("b") + END, f"done{END}")
    t = rig.run()
    assert [c.status for c in t.tool_calls] == [ToolStatus.OK, ToolStatus.PARSE_ERROR, ToolStatus.OK]
    assert "at character" in t.tool_calls[1].response
    assert [invocation.arguments["code"] for invocation in rig.ran] == ["a", "b"]


def test_vllm_25281_calls_are_seen_where_their_tags_are_special_tokens(tokenizer_folder: Path, tmp_path: Path):
    definition = tokenizers.Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))
    definition.add_special_tokens(["<tool_call>", "</tool_call>"])
    definition.save(str(tmp_path / "tokenizer.json"))
    rig = Agent(load_tokenizer(tmp_path), [call("1") + END, f"done{END}"])
    assert "tool_call" not in rig.tokenizer.decode(rig.tokenizer.encode(call("1")), keep_special=False)
    assert rig.run().tool_calls[0].status is ToolStatus.OK


def test_hermes_agent_7680_a_call_that_the_limit_cuts_ends_the_rollout_as_truncated(agent: Make):
    rig = agent(call("print(1)") + END)
    t = rig.run(max_response_tokens=len(rig.tokenizer.encode(call("print(1)"))) - 5)
    assert (t.end_reason, rig.ran, len(rig.engine.requests)) == (EndReason.TRUNCATED, [], 1)


def test_rstar_an_unclosed_call_is_no_final_answer(agent: Make):
    t = agent(f"<answer>4</answer><tool_call>{{{END}").run()
    assert t.end_reason is EndReason.UNCLOSED_CALL


@pytest.mark.parametrize("line", [call("1/0"), "<tool_call>{</tool_call>"])
def test_rstar_52_and_verl_7697_a_call_repeated_for_ever_has_its_own_end(agent: Make, line: str):
    t = agent(line + END).run(max_turns=50, max_repeated_calls=4)
    assert (t.end_reason, t.turns) == (EndReason.REPEATED_CALLS, 4)


def test_verl_7697_infrastructure_faults_do_not_count_as_repetition(agent: Make):
    t = agent(call("1") + END, result=ToolResult(ToolStatus.UNAVAILABLE, "")).run(max_repeated_calls=1)
    assert t.end_reason is EndReason.INFRASTRUCTURE
    assert t.failed_tool_calls == 0


@pytest.mark.parametrize(
    ("result", "failed"),
    [
        (ToolResult(ToolStatus.OK, "Error: error"), 0),
        (ToolResult(ToolStatus.TIMEOUT, "took long"), 1),
        (ToolResult(ToolStatus.ERROR, "boom"), 1),
    ],
)
def test_rstar_failed_calls_are_told_by_status_not_by_words(agent: Make, result: ToolResult, failed: int):
    t = agent(call("1") + END, f"<answer>4</answer>{END}", result=result).run()
    assert ScoredRollout.of(t, 1.0).failed_tool_calls == failed


# -- lengths ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("room", range(0, 90, 7))
def test_skyrl_696_and_prime_rl_1938_no_result_pushes_the_total_over_the_limit(agent: Make, room: int):
    rig = agent(call("1") + END, result=ToolResult(ToolStatus.OK, "x" * 30))
    prompt = rig.run(max_turns=1).ledger.prompt_length
    rig.engine.requests.clear()
    limit = prompt + len(rig.tokenizer.encode(call("1") + END)) + room
    t = rig.run(max_total_tokens=limit)
    assert len(t.ledger) <= limit
    assert all(r.max_new_tokens >= 1 and len(r.token_ids) + r.max_new_tokens <= limit for r in rig.engine.requests)
    assert t.end_reason is EndReason.TRUNCATED
    assert ScoredRollout.of(t, 0.0).reward == 0.0


# -- groups and sampling ----------------------------------------------------------------------------------------------


def test_search_r1_88_a_group_is_one_problem_instance(agent: Make):
    loop = agent(END).loop
    mixed = [ProblemRequest("p", "g", "?"), ProblemRequest("q", "g", "?")]
    with pytest.raises(UserInputError, match="group_id"):
        loop.batch(mixed, SamplingSettings(), RolloutLimits(), ToolSettings())
    batch = loop.batch([ProblemRequest("p", "g", "?", 3)], SamplingSettings(), RolloutLimits(), ToolSettings())

    async def groups() -> list[tuple[str, int]]:
        return sorted([(t.group_id, t.sample_index) async for t in batch])

    assert asyncio.run(groups()) == [("g", 0), ("g", 1), ("g", 2)]


def test_trl_5773_a_missing_reward_is_no_zero():
    rollouts = [ScoredRollout("a", 1.0), ScoredRollout("b", None), ScoredRollout("c", 0.0)]
    outcome = resample_on_correct(rollouts, 3, seed=0, group_id="g")
    assert outcome.kept_ids == ("a", "c")
    assert (outcome.negatives, outcome.unscorable) == (1, 1)


def test_agent_lightning_462_a_rollout_of_many_turns_is_one_of_its_group(agent: Make):
    t = agent(call("1") + END, call("2") + END, f"done{END}").run()
    assert (t.turns, len({ScoredRollout.of(t, 1.0).trajectory_id})) == (3, 1)


@pytest.mark.parametrize("rounds", [0, 3])
def test_dapo_22_and_areal_450_a_step_of_rejected_groups_ends_and_says_so(rounds: int):
    groups = dict.fromkeys("abcd", True)
    outcomes = [select_groups(groups, 4, rounds_done=done, max_rounds=rounds).outcome for done in range(rounds + 1)]
    assert outcomes == [SelectionOutcome.REFILL] * rounds + [SelectionOutcome.SKIP]


@pytest.mark.parametrize("mode", Mode)
def test_rstar_resampling_takes_odd_sizes_and_follows_the_seed_not_the_order(mode: Mode):
    group = [ScoredRollout(f"p{i}", 1.0) for i in range(4)] + [ScoredRollout(f"n{i}", 0.0) for i in range(4)]
    kept = [resample_on_correct(group, 7, seed=seed, group_id="g", mode=mode).kept_ids for seed in range(20)]
    assert {len(ids) for ids in kept} == {7}
    assert len(set(kept)) > 1
    assert resample_on_correct(group[::-1], 7, seed=0, group_id="g", mode=mode).kept_ids == kept[0]


def test_trl_4159_the_engine_samples_at_the_temperature_of_the_request(agent: Make):
    """Its log-probabilities are under what it sampled from; see the conformance suite of the engines."""
    rig = agent(call("1") + END, f"done{END}")
    rig.run(temperature=0.6)
    assert {(r.temperature, r.log_probs) for r in rig.engine.requests} == {(0.6, True)}
