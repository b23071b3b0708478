"""Chat: what a person sees of a turn, in which order, and what the policy is given."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar_model.chat_format import ChatFormat
from rstar_model.tokenizer import Tokenizer
from rstar_model.tools import PYTHON_TOOL
from rstar_model.types import ToolStatus
from rstar_rollout.agent_loop import AgentLoop
from rstar_rollout.chat import ChatEvent, ChatSession
from rstar_rollout.engines.base import GenerationRequest, GenerationResult
from rstar_rollout.engines.scripted import ScriptedEngine
from rstar_rollout.limits import SamplingSettings, ToolSettings
from rstar_rollout.tool_executor import ToolInvocation, ToolResult
from rstar_rollout.turn_view import Piece, TurnView

CALL = (
    '<tool_call>{"name": "execute_python_code_with_standard_io", '
    '"arguments": {"code": "print(1)", "input": ""}}</tool_call>'
)


class Tools:
    """Answers every call with the same text."""

    specs = (PYTHON_TOOL,)

    async def execute(self, invocation: ToolInvocation) -> ToolResult:
        return ToolResult(ToolStatus.OK, f"ran {invocation.arguments['code']}")


class Portions(ScriptedEngine):
    """A scripted engine that tells its ids one by one."""

    async def generate(self, request: GenerationRequest, on_tokens=None) -> GenerationResult:
        result = await super().generate(request)
        for token in result.token_ids:
            on_tokens([token])
        return result


def session(chat_format: ChatFormat, tokenizer: Tokenizer, turns: list[str], **options) -> ChatSession:
    def script(request: GenerationRequest) -> list[int]:
        return tokenizer.encode(turns[min(request.noise.turn, len(turns) - 1)])

    loop = AgentLoop(Portions(script), chat_format, tokenizer, Tools())
    return ChatSession(loop, SamplingSettings(), ToolSettings(), **options)


async def shown(chat: ChatSession, message: str = "hello") -> list[ChatEvent]:
    """Events, portions of one kind joined."""
    events: list[ChatEvent] = []
    async for event in chat.answer(message):
        if events and events[-1].kind == event.kind and event.kind in ("reasoning", "answer"):
            event = ChatEvent(event.kind, events.pop().text + event.text)
        events.append(event)
    return events


async def test_reasoning_code_result_and_answer_come_in_order(chat_format, tokenizer):
    turns = [f"I compute.</reason>{CALL}<|im_end|>", "so</reason><answer>it is 1 é</answer><|im_end|>"]
    assert await shown(session(chat_format, tokenizer, turns)) == [
        ChatEvent("reasoning", "I compute."),
        ChatEvent("call", "print(1)"),
        ChatEvent("result", "[ok] ran print(1)"),
        ChatEvent("reasoning", "so"),
        ChatEvent("answer", "it is 1 é"),
    ]


async def test_text_comes_before_the_turn_has_ended(chat_format, tokenizer):
    chat = session(chat_format, tokenizer, ["abc<|im_end|>"])
    assert [event.text async for event in chat.answer("hi")] == ["a", "b", "c"]


async def test_an_unclosed_call_is_shown_and_not_run(chat_format, tokenizer):
    events = await shown(session(chat_format, tokenizer, ['x<tool_call>{"name": <|im_end|>']))
    assert [event.kind for event in events] == ["reasoning", "note"]


async def test_an_answer_that_is_cut_is_noted(chat_format, tokenizer):
    events = await shown(session(chat_format, tokenizer, ["a" * 50], max_new_tokens=10))
    assert events[-1] == ChatEvent("note", "the answer was cut: no room left")


async def test_a_malformed_call_is_shown_with_its_error(chat_format, tokenizer):
    turns = ["<tool_call>nonsense</tool_call><|im_end|>", "done<|im_end|>"]
    events = await shown(session(chat_format, tokenizer, turns))
    assert events[0] == ChatEvent("call", "(not a valid call)")
    assert events[1].text.startswith("[parse_error]")


async def test_the_turn_limit_is_noted(chat_format, tokenizer):
    events = await shown(session(chat_format, tokenizer, [f"{CALL}<|im_end|>"], max_turns=2))
    assert events[-1].text == "turn limit of 2 reached"


async def test_a_second_message_extends_the_ids_of_the_first(chat_format, tokenizer):
    chat = session(chat_format, tokenizer, ["one<|im_end|>", "two<|im_end|>"])
    await shown(chat)
    await shown(chat, "again <|im_end|> and more")
    first, second = chat._loop.engine.requests
    said = [*first.token_ids, *tokenizer.encode("one<|im_end|>")]
    assert list(second.token_ids[: len(said)]) == said
    # What a person types is no control token.
    end = chat_format.end_of_turn_id(tokenizer)
    assert second.token_ids[len(said) :].count(end) == 1


PARTS = ["a", "<", "<answer>", "</answer>", "<tool_call>", "</tool_call>", "<reason>", "</reason>", "<|im_end|>", "é\n"]
TURN = st.lists(st.sampled_from(PARTS), max_size=12).map("".join)


def pieces(view: TurnView, portions: list[str]) -> list[Piece]:
    joined: list[Piece] = []
    for piece in [piece for portion in portions for piece in view.feed(portion)] + list(view.end()):
        if joined and joined[-1].kind == piece.kind != "call":
            piece = Piece(piece.kind, joined.pop().text + piece.text)
        joined.append(piece)
    return joined


@given(TURN, st.lists(st.integers(0, 100), max_size=8))
def test_what_is_shown_does_not_depend_on_the_portions(text: str, cuts: list[int]):
    chat_format = ChatFormat.load("rstar")
    places = sorted({min(cut, len(text)) for cut in cuts})
    portions = [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]
    assert pieces(TurnView(chat_format), portions) == pieces(TurnView(chat_format), [text])


@pytest.mark.parametrize("text", ["no tags at all", "a < b and c > d", "<answe"])
def test_plain_text_is_shown_whole(chat_format, text: str):
    assert pieces(TurnView(chat_format), list(text)) == [Piece("reasoning", text)]
