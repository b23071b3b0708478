"""One row of each public layout becomes the same kind of conversation."""

from __future__ import annotations

from typing import Any

import pytest

from rstar_model.tools import PYTHON_TOOL
from rstar_trainer.demonstrations.conversation import (
    AssistantTurn,
    Call,
    Conversation,
    DroppedRowError,
    ToolTurn,
    UserTurn,
    checked,
)
from rstar_trainer.demonstrations.layouts import LAYOUTS, layout_of

WEATHER = '{"name": "weather", "description": "of a city", "parameters": {"city": {"type": "string"}}}'
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": []}
CALL = Call("weather", {"city": "Oslo"})
TURNS = (UserTurn("How is Oslo?"), AssistantTurn("", (CALL,)), ToolTurn(("cold",)), AssistantTurn("It is cold."))

ROWS: dict[str, dict[str, Any]] = {
    "sharegpt": {
        "conversations": [
            {"from": "human", "value": "How is Oslo?"},
            {"from": "function_call", "value": '{"name": "weather", "arguments": {"city": "Oslo"}}'},
            {"from": "observation", "value": "cold"},
            {"from": "gpt", "value": "It is cold."},
        ],
        "tools": f"[{WEATHER}]",
    },
    "toolace": {
        "system": f"You can call functions. Here they are:\n[{WEATHER}]\nWrite calls as [name(argument=value)].",
        "conversations": [
            {"from": "user", "value": "How is Oslo?"},
            {"from": "assistant", "value": '[weather(city="Oslo")]'},
            {"from": "tool", "value": "cold"},
            {"from": "assistant", "value": "It is cold."},
        ],
    },
    "glaive": {
        "system": f"SYSTEM: You are a helpful assistant with access to the following functions. Use them -\n{WEATHER}",
        "chat": "USER: How is Oslo?\n\n\nASSISTANT: <functioncall> "
        '{"name": "weather", "arguments": \'{"city": "Oslo"}\'} <|endoftext|>\n\n\n'
        "FUNCTION RESPONSE: cold\n\n\nASSISTANT: It is cold. <|endoftext|>\n\n\n",
    },
    "messages": {
        "messages": [
            {"role": "user", "content": "How is Oslo?"},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}],
            },
            {"role": "tool", "content": "cold"},
            {"role": "assistant", "content": "It is cold."},
        ],
        "tools": f"[{WEATHER}]",
    },
    "own": {
        "tools": [{"name": "weather", "description": "of a city", "parameters": SCHEMA}],
        "system": "",
        "turns": [
            {"role": "user", "text": "How is Oslo?"},
            {"role": "assistant", "text": "", "calls": [{"name": "weather", "arguments": {"city": "Oslo"}}]},
            {"role": "tool", "responses": ["cold"]},
            {"role": "assistant", "text": "It is cold."},
        ],
    },
}  # fmt: skip


def read(row: dict[str, Any]) -> tuple[Conversation, list[str]]:
    layout, notes = layout_of(row), []
    assert layout is not None
    return checked(LAYOUTS[layout](row, notes), notes), notes


@pytest.mark.parametrize("layout", ROWS)
def test_a_tool_call_conversation_is_the_same_in_every_layout(layout: str) -> None:
    assert layout_of(ROWS[layout]) == layout
    conversation, _ = read(ROWS[layout])
    assert conversation.turns == TURNS
    assert [tool.name for tool in conversation.tools] == ["weather"]
    assert conversation.tools[0].parameters["properties"] == {"city": {"type": "string"}}


def test_calls_in_one_turn_are_answered_in_order() -> None:
    call = {"type": "tool_call", "value": '{"name": "weather", "arguments": {"city": "Oslo"}}'}
    row = {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "value": "How is it?"}]},
            {"role": "assistant", "content": [{"type": "reasoning", "value": "hm"}, call, call]},
            {"role": "tool", "content": '["cold", {"t": 1}]'},
            {"role": "assistant", "content": "<think>so</think>\n\nCold."},
        ],
        "tools": f"[{WEATHER}]",
    }
    conversation, notes = read(row)
    assert conversation.system == "Be brief."
    assert conversation.turns[1:] == (
        AssistantTurn("", (CALL, CALL)),
        ToolTurn(("cold", '{"t": 1}')),
        AssistantTurn("Cold."),
    )
    assert set(notes) == {"reasoning removed"}


def test_code_of_magicoder_becomes_a_call() -> None:
    row = {"problem": "Add.", "solution": "Like this:\n```python\nprint(1 + 2)\n```\nDone.", "lang": "python"}
    conversation, notes = read(row)
    call = Call(PYTHON_TOOL.name, {"code": "print(1 + 2)", "input": ""})
    assert conversation.turns == (UserTurn("Add."), AssistantTurn("Like this:", (call,)))
    assert conversation.tools == (PYTHON_TOOL,)
    assert notes == ["text after the code removed"]


@pytest.mark.parametrize(
    ("solution", "language", "reason"),
    [
        ("```rust\nfn main() {}\n```", "rust", "not Python"),
        ("```cpp\nint x;\n```", "python", "not Python"),
        ("no code", "python", "not exactly one block"),
        ("```python\na\n```\n```python\nb\n```", "python", "not exactly one block"),
        ("```python\ndef f(:\n```", "python", "not valid Python"),
    ],
)
def test_code_that_the_tool_cannot_run_is_dropped(solution: str, language: str, reason: str) -> None:
    with pytest.raises(DroppedRowError, match=reason):
        read({"problem": "p", "solution": solution, "lang": language})


def test_evol_instruct_needs_a_block_marked_as_python() -> None:
    conversation, _ = read({"instruction": "Print 1.", "response": "```python\nprint(1)\n```"})
    assert isinstance(conversation.turns[1], AssistantTurn)
    with pytest.raises(DroppedRowError, match="not Python"):
        read({"instruction": "Print 1.", "response": "```\nprint(1)\n```"})


def test_chat_answers_of_nemotron_lose_the_other_models_system_prompt() -> None:
    row = {"input": [{"role": "user", "content": "Hi"}], "output": "Hello.", "reasoning": "off", "system_prompt": "x"}
    assert read(row)[0] == Conversation((UserTurn("Hi"), AssistantTurn("Hello.")))
    with pytest.raises(DroppedRowError, match="reasoning"):
        read({**row, "reasoning": "on"})


def test_tulu_is_plain_messages() -> None:
    row = {
        "id": "t",
        "prompt": "Hi",
        "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}],
    }
    assert read(row)[0] == Conversation((UserTurn("Hi"), AssistantTurn("Yo")))


def conversation_of(*turns: Any) -> Conversation:
    return Conversation(turns, read(ROWS["own"])[0].tools)


@pytest.mark.parametrize(
    ("turns", "reason"),
    [
        ((AssistantTurn("a"),), "no user turn"),
        ((UserTurn("u"), AssistantTurn("", (CALL,)), UserTurn("u"), AssistantTurn("a")), "call without a result"),
        ((UserTurn("u"), ToolTurn(("x",)), AssistantTurn("a")), "tool result without a call"),
        ((UserTurn("u"), UserTurn("u"), AssistantTurn("a")), "two turns of one speaker"),
        ((UserTurn("u"), AssistantTurn("")), "empty assistant turn"),
        ((UserTurn(" "), AssistantTurn("a")), "empty user turn"),
        ((UserTurn("u"), AssistantTurn("", (Call("other", {}),))), "not offered"),
        ((UserTurn("u"), AssistantTurn("", (Call("weather", {"city": 3}),))), "do not fit"),
        ((UserTurn("u"), AssistantTurn("", (CALL, CALL)), ToolTurn(("x",)), AssistantTurn("a")), "do not match"),
    ],
)
def test_conversations_that_cannot_be_learned_from_are_dropped(turns: tuple[Any, ...], reason: str) -> None:
    with pytest.raises(DroppedRowError, match=reason):
        checked(conversation_of(*turns), [])


def test_ends_are_trimmed_to_what_the_assistant_answered() -> None:
    notes: list[str] = []
    given = conversation_of(AssistantTurn("Welcome."), UserTurn("u"), AssistantTurn("a"), UserTurn("thanks"))
    assert checked(given, notes).turns == (UserTurn("u"), AssistantTurn("a"))
    assert len(notes) == 2


@pytest.mark.parametrize("row", [{}, {"text": "x"}, {"conversations": "x"}])
def test_other_rows_have_no_layout(row: dict[str, Any]) -> None:
    assert layout_of(row) is None
