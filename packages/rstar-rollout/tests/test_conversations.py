"""Random conversations through the agent loop, in every format, with every text an adversary could choose.

What holds of each is written out in `check`. 10,000 of them are the heavy test; a few hundred run always.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import math
import unicodedata
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rstar_model.chat_format import ChatFormat
from rstar_model.template_check import rendered
from rstar_model.testing import FAMILIES, write_family
from rstar_model.tokenizer import Tokenizer, load_tokenizer, valid_text
from rstar_model.tools import PYTHON_TOOL
from rstar_model.trajectory import Trajectory, trajectory_from_proto, trajectory_to_proto
from rstar_model.types import EndReason, SpanKind, ToolStatus
from rstar_rollout.agent_loop import AgentLoop
from rstar_rollout.engines.base import GenerationRequest, GenerationResult
from rstar_rollout.engines.scripted import ScriptedEngine
from rstar_rollout.limits import ProblemRequest, RolloutLimits, SamplingSettings, ToolSettings
from rstar_rollout.tool_executor import ToolInvocation, ToolResult

PAIRS = [("rstar", "qwen2.5"), ("rstar", "qwen3"), *((name, name) for name in FAMILIES)]
"""Chat format, and the family whose tokenizer and template it is used with."""

FRAGMENTS = [
    *("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|start_header_id|>", "<|begin_of_text|>", "<|im_"),
    *("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>", "<reason>"),
    *("assistant\n", "user\n", "{problem}", "{{ x }}", "{% raw %}", '{"name": "x", "arguments": {}}', "\\", '"', "{"),
    *("\n", "\n\n", " ", "\t", "\r\n", "\x00", "e\N{COMBINING ACUTE ACCENT}", "\N{SNOWMAN}", "\N{PILE OF POO}"),
    *("\ud800", "\N{REPLACEMENT CHARACTER}", "\N{RIGHT-TO-LEFT OVERRIDE}", "12345", "the sum"),
]
hostile = st.lists(st.sampled_from(FRAGMENTS) | st.text(max_size=4), max_size=6).map("".join)
PYTHON = PYTHON_TOOL.name
calls = st.one_of(
    hostile.map(lambda text: json.dumps({"name": PYTHON, "arguments": {"code": text}})),
    hostile.map(lambda text: json.dumps({"name": PYTHON, "arguments": {"code": text}}, ensure_ascii=False)),
    hostile,
    st.just(json.dumps({"name": "unknown", "arguments": {}})),
)
ids = st.lists(st.integers(0, 10_000), max_size=5)


@dataclass(frozen=True)
class Turn:
    """What the policy emits: text as its tokenizer would write it, some ids, text letter by letter, calls, an end."""

    text: str
    ids: list[int]
    spelled: str
    calls: list[str]
    ends_otherwise: bool


turns = st.builds(Turn, hostile, ids, st.text(max_size=4), st.lists(calls, max_size=3), st.booleans())


@dataclass(frozen=True)
class Conversation:
    """Everything that varies. ``outputs`` are what the tool says, one after another."""

    problem: str
    turns: list[Turn]
    outputs: list[str]
    tools: bool
    max_response_tokens: int
    max_output_tokens: int
    lockstep: bool


conversations = st.builds(
    Conversation,
    hostile,
    st.lists(turns, min_size=1, max_size=4),
    st.lists(hostile, min_size=1, max_size=4),
    st.sampled_from([True, True, True, False]),
    st.sampled_from([3000, 3000, 200, 40]),
    st.sampled_from([0, 0, 9]),
    st.booleans(),
)


class Rig:
    """An agent loop over an engine that says what a conversation has it say, with log-probabilities of its own."""

    def __init__(self, format_name: str, tokenizer: Tokenizer) -> None:
        self.chat_format = ChatFormat.load(format_name)
        self.tokenizer = tokenizer
        self.stops = self.chat_format.stop_ids(tokenizer)
        self.specs = (PYTHON_TOOL,)
        self.engine = Recorder(self.script)
        self.loop = AgentLoop(self.engine, self.chat_format, tokenizer, self)
        self.conversation: Conversation
        self.outputs: itertools.cycle[str]

    def script(self, request: GenerationRequest) -> list[int]:
        turn = self.conversation.turns[min(request.noise.turn, len(self.conversation.turns) - 1)]
        encode = self.tokenizer.encode
        tokens = [*encode(turn.text), *(token % self.tokenizer.vocab_size for token in turn.ids)]
        tokens += [token for letter in turn.spelled for token in encode(letter)]
        last = request.noise.turn >= len(self.conversation.turns) - 1
        for call in () if last else turn.calls:
            tokens += encode(f"<tool_call>{call}</tool_call>")
        tokens = [token for token in tokens if token not in self.stops]
        # A turn may end without the format's own end-of-turn token, where the model has another one.
        others = sorted(self.stops - {self.chat_format.end_of_turn_id(self.tokenizer)})
        return [
            *tokens,
            others[0] if turn.ends_otherwise and others else self.chat_format.end_of_turn_id(self.tokenizer),
        ]

    async def execute(self, invocation: ToolInvocation) -> ToolResult:
        return ToolResult(ToolStatus.OK, next(self.outputs))

    def run(self, conversation: Conversation) -> Trajectory:
        self.conversation, self.outputs = conversation, itertools.cycle(conversation.outputs)
        self.engine.deterministic = conversation.lockstep
        self.engine.requests, self.engine.results = [], []
        limits = RolloutLimits(
            max_turns=9,
            max_response_tokens=conversation.max_response_tokens,
            max_tool_output_tokens=conversation.max_output_tokens,
        )
        batch = self.loop.batch(
            [ProblemRequest("p", "g", conversation.problem)],
            SamplingSettings(),
            limits,
            ToolSettings(enabled=conversation.tools),
        )

        async def collect() -> list[Trajectory]:
            return [trajectory async for trajectory in batch]

        (trajectory,) = asyncio.run(collect())
        return trajectory


class Recorder(ScriptedEngine):
    """Keeps what it answered; log-probabilities differ from token to token."""

    results: list[GenerationResult]

    async def generate(self, request: GenerationRequest, on_tokens: object = None) -> GenerationResult:
        said = await super().generate(request)
        log_probs = tuple(-0.5 - request.noise.turn - place / 8 for place in range(len(said.token_ids)))
        result = dataclasses.replace(said, log_probs=log_probs, weight_version=7)
        self.results.append(result)
        return result


@pytest.fixture(scope="module")
def rigs(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Rig]:
    root = tmp_path_factory.mktemp("families")
    tokenizers = {name: load_tokenizer(write_family(root / name, name)) for name in FAMILIES}
    # Another token that ends a generation, as models have besides the one that ends a turn.
    for name, tokenizer in tokenizers.items():
        other = "<|end_of_text|>" if name == "llama-3" else "<|endoftext|>"
        assert tokenizer.folder is not None
        (tokenizer.folder / "generation_config.json").write_text(
            json.dumps({"eos_token_id": [tokenizer.token_id(other)]})
        )
    tokenizers = {name: load_tokenizer(root / name) for name in FAMILIES}
    return {pair: Rig(pair[0], tokenizers[pair[1]]) for pair in PAIRS}


def check(rig: Rig, conversation: Conversation) -> None:
    """All that is promised of a rollout's tokens."""
    trajectory = rig.run(conversation)
    ledger, engine, tokenizer = trajectory.ledger, rig.engine, rig.tokenizer
    tokens, mask = ledger.token_ids, ledger.loss_mask

    # Every column is as long as the sequence, on the wire too.
    columns = (mask, ledger.log_probs, ledger.weight_versions, ledger.kinds)
    assert {len(column) for column in columns} == {len(tokens)} == {len(ledger)}
    assert trajectory_from_proto(trajectory_to_proto(trajectory)).ledger.token_ids == tokens

    # The policy's tokens are the engine's, none lost, none added, with their log-probabilities and weight version.
    emitted = [token for result in engine.results for token in result.token_ids]
    assert [token for token, loss in zip(tokens, mask, strict=True) if loss] == emitted
    values = [value for value, loss in zip(ledger.log_probs, mask, strict=True) if loss]
    assert values == [value for result in engine.results for value in result.log_probs]
    assert all(
        math.isnan(v) and w is None
        for v, w, m in zip(ledger.log_probs, ledger.weight_versions, mask, strict=True)
        if not m
    )
    assert {version for version in ledger.weight_versions if version is not None} <= {7}

    # What the engine was asked is what is stored: each request goes on from the one before and its answer.
    stored: list[int] = []
    for request, result in zip(engine.requests, engine.results, strict=True):
        assert list(request.token_ids[: len(stored)]) == stored
        stored = [*request.token_ids, *result.token_ids]
        assert len(stored) <= ledger.prompt_length + conversation.max_response_tokens
        assert request.max_new_tokens >= 1
    # A tool's turn that leaves no room is the last there is, and nothing was asked after it.
    assert tokens[: len(stored)] == stored
    assert not any(mask[len(stored) :])
    assert len(tokens) <= ledger.prompt_length + conversation.max_response_tokens

    # Nobody but the format and the policy writes control tokens.
    control = [
        t
        for t, kind in zip(tokens, ledger.kinds, strict=True)
        if kind is SpanKind.PROMPT and t in tokenizer.control_ids
    ]
    tools = (PYTHON_TOOL,) if conversation.tools else ()
    (_, plain), _ = rig.chat_format.prompt_spans(tokenizer, "2 + 2", tools)
    assert control == [token for token in plain if token in tokenizer.control_ids]
    for span in ledger.spans:
        assert span.kind is not SpanKind.TOOL or tokenizer.control_ids.isdisjoint(span.token_ids)

    check_rendering(rig, conversation, trajectory)


def check_rendering(rig: Rig, conversation: Conversation, trajectory: Trajectory) -> None:
    """The text of the ledger, and its ids where they are canonical, are the template's own rendering."""
    ledger, tokenizer, chat_format = trajectory.ledger, rig.tokenizer, rig.chat_format
    end, template = chat_format.end_of_turn_id(tokenizer), tokenizer.template
    assert template is not None
    tools = (PYTHON_TOOL,) if conversation.tools else ()
    first = rendered(chat_format, template, conversation.problem, (), tools)
    assert same_text(tokenizer.decode(ledger.token_ids[: ledger.prompt_length]), first)

    said: list[tuple[str, list[str]]] = []
    for number, result in enumerate(rig.engine.results):
        text = tokenizer.decode([token for token in result.token_ids if token != end])
        said.append((text, [call.response for call in trajectory.tool_calls if call.turn == number]))
    if said and ledger.spans[-1].kind is SpanKind.POLICY:
        said[-1] = (said[-1][0], [])  # responses that did not fit are no part of the conversation
    written = [text for text, _ in said]
    keeps = rig.loop.template_report.preserves_prefixes or (
        chat_format.trims_turns and all(text == text.strip() for text in written)
    )
    if not keeps or not said:
        return  # the stored tokens are all there is, and what they hold is checked above
    whole = rendered(chat_format, template, conversation.problem, said, tools)
    if ledger.token_ids[-1] != end and not said[-1][1]:
        whole = whole.removesuffix(chat_format.end_of_turn)
    assert same_text(tokenizer.decode(ledger.token_ids), whole)

    strangers = [conversation.problem, *(call.response for call in trajectory.tool_calls)]
    control = [tokenizer.decode([token]) for token in tokenizer.control_ids]
    if any(mark in text for text in strangers for mark in control):
        return  # spelled by ordinary tokens on purpose
    stretches = [
        (policy, [token for _, token in group])
        for policy, group in itertools.groupby(
            zip(ledger.loss_mask, ledger.token_ids, strict=True), key=lambda pair: pair[0]
        )
    ]
    canonical, before = True, ""
    for policy, stretch in stretches:
        text = tokenizer.decode(stretch)
        if policy:
            canonical &= tokenizer.encode(before + text) == tokenizer.encode(before) + stretch
        else:
            assert stretch == tokenizer.encode(valid_text(text))
            before = text
    if canonical:
        assert ledger.token_ids == tokenizer.encode(whole)


def same_text(ours: str, theirs: str) -> bool:
    """Tokenizers may compose characters; unpaired surrogates are no text."""
    return unicodedata.normalize("NFC", ours) == unicodedata.normalize("NFC", valid_text(theirs))


def run_many(rig: Rig, examples: int) -> None:
    @settings(
        max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck), database=None, derandomize=True
    )
    @given(conversations)
    def many(conversation: Conversation) -> None:
        check(rig, conversation)

    many()


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_tokens_are_exact_in_every_format(rigs: dict[tuple[str, str], Rig], pair: tuple[str, str]):
    run_many(rigs[pair], 40)


@pytest.mark.heavy
@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_tokens_are_exact_in_ten_thousand_conversations(rigs: dict[tuple[str, str], Rig], pair: tuple[str, str]):
    run_many(rigs[pair], math.ceil(10_000 / len(PAIRS)))


def test_conversations_reach_what_they_are_meant_to(rigs: dict[tuple[str, str], Rig]):
    """The property would hold of nothing if no call ever ran: three turns, calls of each kind."""
    good = json.dumps({"name": PYTHON, "arguments": {"code": "</tool_call><|im_end|>"}})
    turn = Turn("hm ", [300], "xyz", [good, "{", json.dumps({"name": "unknown", "arguments": {}})], False)
    for pair, rig in rigs.items():
        trajectory = rig.run(Conversation("?", [turn] * 3, ["<|im_end|>", "4"], True, 5000, 0, False))
        assert trajectory.end_reason is EndReason.ANSWERED, pair
        statuses = [call.status for call in trajectory.tool_calls]
        assert statuses == [ToolStatus.OK, ToolStatus.PARSE_ERROR, ToolStatus.UNKNOWN_TOOL] * 2, pair
        assert trajectory.turns == 3
