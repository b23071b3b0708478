"""The layouts of public data sets, each a function from a row to a `Conversation`.

| layout | data sets | told by |
|---|---|---|
| own | what `write_conversations` writes | `turns` with roles |
| sharegpt | APIGen-MT-5k, Glaive as converted for LLaMA-Factory | `conversations`, `tools` |
| toolace | ToolACE | `conversations`, signatures in the `system` text, calls as Python text |
| glaive | glaive-function-calling-v2 | `system` and `chat` as plain texts |
| messages | Tulu 3, tool-use sets with typed content | `messages` |
| magicoder | Magicoder OSS-Instruct and Evol-Instruct | `problem` and `solution`, or `instruction` and `response` |
| nemotron | Llama-Nemotron post-training, chat | `input` and `output` |
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from typing import Any

from rstar_model.tools import PYTHON_TOOL, ToolSpec
from rstar_trainer.demonstrations.calls import call_from_json, calls_from_python
from rstar_trainer.demonstrations.conversation import (
    AssistantTurn,
    Call,
    Conversation,
    DroppedRowError,
    ToolTurn,
    Turn,
    UserTurn,
)
from rstar_trainer.demonstrations.signatures import parse_tools, tools_in_text

__all__ = ["LAYOUTS", "Row", "layout_of"]

Row = Mapping[str, Any]
Notes = list[str]

_GLAIVE_TURN = re.compile(r"(?:^|\s)(USER|ASSISTANT|FUNCTION RESPONSE):\s")
_GLAIVE_CALL = re.compile(r"<functioncall>(.*)", re.S)
_CODE_BLOCK = re.compile(r"```([^\n`]*)\n(.*?)```", re.S)
_THINKING = re.compile(r"<think>.*?</think>\s*", re.S)
_USERS, _ASSISTANTS = ("human", "user"), ("gpt", "assistant")
_TOOLS = ("observation", "tool", "function_response", "ipython")


def layout_of(row: Row) -> str | None:
    """Name of the layout of a row, None for none that is known."""
    if isinstance(row.get("turns"), list) and "problem" not in row:
        return "own"
    if isinstance(row.get("conversations"), list):
        return "sharegpt" if row.get("tools") is not None or not row.get("system") else "toolace"
    if isinstance(row.get("chat"), str):
        return "glaive"
    if isinstance(row.get("messages"), list):
        return "messages"
    if {"problem", "solution"} <= row.keys() or {"instruction", "response"} <= row.keys():
        return "magicoder"
    if {"input", "output"} <= row.keys():
        return "nemotron"
    return None


def _own(row: Row, notes: Notes) -> Conversation:
    turns: list[Turn] = []
    for turn in row["turns"]:
        role = turn.get("role")
        if role == "user":
            turns.append(UserTurn(turn["text"]))
        elif role == "assistant":
            turns.append(AssistantTurn(turn["text"], tuple(call_from_json(call) for call in turn.get("calls", ()))))
        elif role == "tool":
            turns.append(ToolTurn(tuple(turn["responses"])))
        else:
            raise DroppedRowError("a turn of an unknown speaker")
    tools = tuple(ToolSpec(tool["name"], tool["description"], tool["parameters"]) for tool in row.get("tools", ()))
    return Conversation(tuple(turns), tools, row.get("system", ""))


def _sharegpt(row: Row, notes: Notes) -> Conversation:
    turns: list[Turn] = []
    for message in row["conversations"]:
        speaker, text = message["from"], message["value"]
        if speaker in _USERS:
            turns.append(UserTurn(text))
        elif speaker in _ASSISTANTS:
            turns.append(AssistantTurn(text))
        elif speaker == "function_call":
            _add_call(turns, text)
        elif speaker in _TOOLS:
            _add_response(turns, text)
        elif speaker != "system":
            raise DroppedRowError("a turn of an unknown speaker")
    return Conversation(tuple(turns), parse_tools(row.get("tools")), row.get("system") or "")


def _add_call(turns: list[Turn], text: str) -> None:
    """Calls in a row, one of them as JSON list too, belong to one turn; so does what was said just before."""
    parsed = tuple(call_from_json(part) for part in _parts(text))
    last = turns[-1] if turns else None
    if isinstance(last, AssistantTurn):
        turns[-1] = AssistantTurn(last.text, (*last.calls, *parsed))
    else:
        turns.append(AssistantTurn("", parsed))


def _add_response(turns: list[Turn], text: str) -> None:
    last = turns[-1] if turns else None
    if isinstance(last, ToolTurn):
        turns[-1] = ToolTurn((*last.responses, text))
    else:
        turns.append(ToolTurn((text,)))


def _parts(text: str) -> list[Any]:
    if text.lstrip().startswith("["):
        return tools_in_text(text) or [text]
    return [text]


def _toolace(row: Row, notes: Notes) -> Conversation:
    turns: list[Turn] = []
    for message in row["conversations"]:
        speaker, text = message["from"], message["value"]
        if speaker in _USERS:
            turns.append(UserTurn(text))
        elif speaker in _ASSISTANTS:
            calls = calls_from_python(text)
            turns.append(AssistantTurn("" if calls else text, calls))
        elif speaker in _TOOLS:
            turns.append(ToolTurn((text,)))
        else:
            raise DroppedRowError("a turn of an unknown speaker")
    # The rest of the text tells how to write calls as Python, which is not this project's format.
    notes.append("instructions for another call format removed")
    return Conversation(tuple(turns), parse_tools(tools_in_text(row["system"])))


def _glaive(row: Row, notes: Notes) -> Conversation:
    system = str(row.get("system") or "")
    parts = _GLAIVE_TURN.split(row["chat"])[1:]
    turns: list[Turn] = []
    for speaker, raw in zip(parts[::2], parts[1::2], strict=True):
        text = raw.replace("<|endoftext|>", "").strip()
        call = _GLAIVE_CALL.search(text)
        if speaker == "USER":
            turns.append(UserTurn(text))
        elif speaker == "FUNCTION RESPONSE":
            turns.append(ToolTurn((text,)))
        elif call:
            turns.append(AssistantTurn(text[: call.start()].strip(), (call_from_json(call[1].strip()),)))
        else:
            turns.append(AssistantTurn(text))
    return Conversation(tuple(turns), parse_tools(tools_in_text(system)))


def _messages(row: Row, notes: Notes) -> Conversation:
    turns: list[Turn] = []
    system: list[str] = []
    for message in row["messages"]:
        role = message["role"]
        text, calls = _content(message, notes)
        if role == "system":
            system.append(text)
        elif role in _USERS:
            turns.append(UserTurn(text))
        elif role in _ASSISTANTS:
            turns.append(AssistantTurn(text, calls))
        elif role in _TOOLS:
            _add_response(turns, text)
        else:
            raise DroppedRowError("a turn of an unknown speaker")
    return Conversation(tuple(turns), parse_tools(row.get("tools")), "\n".join(system))


def _content(message: Row, notes: Notes) -> tuple[str, tuple[Call, ...]]:
    """Text and calls of a message whose content is a text, or parts with types; reasoning is left out."""
    calls = [call_from_json(call) for call in message.get("tool_calls") or ()]
    content = message.get("content") or ""
    if isinstance(content, str):
        return _without_thinking(content, notes), tuple(calls)
    texts = []
    for part in content:
        kind, value = part["type"], part.get("value", part.get("text", ""))
        if kind == "text":
            texts.append(value)
        elif kind == "tool_call":
            calls.append(call_from_json(value))
        elif kind == "reasoning":
            notes.append("reasoning removed")
        else:
            raise DroppedRowError("content of an unknown type")
    return "\n".join(texts), tuple(calls)


def _magicoder(row: Row, notes: Notes) -> Conversation:
    problem = row["problem"] if "problem" in row else row["instruction"]
    solution = row["solution"] if "solution" in row else row["response"]
    language = row.get("lang")
    if isinstance(language, str) and language.lower() != "python":
        raise DroppedRowError("not Python")
    blocks = list(_CODE_BLOCK.finditer(solution))
    if len(blocks) != 1:
        raise DroppedRowError("not exactly one block of code")
    tag, code = blocks[0][1].strip().lower(), blocks[0][2]
    if tag not in ("python", "py", "python3", "") or (tag == "" and language is None):
        raise DroppedRowError("not Python")
    try:
        ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise DroppedRowError("code that is not valid Python") from error
    said = solution[: blocks[0].start()].strip()
    if solution[blocks[0].end() :].strip():
        notes.append("text after the code removed")
    call = Call(PYTHON_TOOL.name, {"code": code.rstrip("\n"), "input": ""})
    return Conversation((UserTurn(problem), AssistantTurn(said, (call,))), (PYTHON_TOOL,))


def _nemotron(row: Row, notes: Notes) -> Conversation:
    if str(row.get("reasoning") or "off").lower() == "on":
        raise DroppedRowError("a reasoning answer, in non-reasoning SFT")
    asked = row["input"]
    messages = [{"role": "user", "content": asked}] if isinstance(asked, str) else list(asked)
    found = _messages({"messages": [*messages, {"role": "assistant", "content": row["output"]}]}, notes)
    # "detailed thinking off" addresses another model.
    return Conversation(found.turns, (), "")


def _without_thinking(text: str, notes: Notes) -> str:
    shown = _THINKING.sub("", text)
    if shown != text:
        notes.append("reasoning removed")
    return shown


LAYOUTS: Mapping[str, Callable[[Row, Notes], Conversation]] = {
    "own": _own,
    "sharegpt": _sharegpt,
    "toolace": _toolace,
    "glaive": _glaive,
    "messages": _messages,
    "magicoder": _magicoder,
    "nemotron": _nemotron,
}
"""Readers by name of the layout; each may raise `DroppedRowError`, and KeyError or TypeError for a malformed row."""
