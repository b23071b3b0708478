"""What a demonstration consists of, and the rules that make it one a policy can learn from."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rstar_model.tools import ToolSpec

__all__ = [
    "AssistantTurn",
    "Call",
    "Conversation",
    "DroppedRowError",
    "ToolTurn",
    "Turn",
    "UserTurn",
    "checked",
]


class DroppedRowError(Exception):
    """A row that cannot be learned from; the text is the reason, the same words for the same kind of fault."""


@dataclass(frozen=True)
class Call:
    """One tool call."""

    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True)
class UserTurn:
    """What a person says."""

    text: str


@dataclass(frozen=True)
class AssistantTurn:
    """What the policy is taught to write: text, then calls, either of which may be absent."""

    text: str
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True)
class ToolTurn:
    """One response for each call of the turn before, in their order."""

    responses: tuple[str, ...]


Turn = UserTurn | AssistantTurn | ToolTurn


@dataclass(frozen=True)
class Conversation:
    """A conversation that begins with a user turn and ends with an assistant turn.

    Attributes:
        turns: in order.
        tools: what the assistant may call.
        system: instructions of the data set beyond those of the chat format; empty for none.
    """

    turns: tuple[Turn, ...]
    tools: tuple[ToolSpec, ...] = ()
    system: str = ""


def checked(conversation: Conversation, notes: list[str]) -> Conversation:
    """The conversation with faults at its end mended.

    Args:
        conversation: as it was read.
        notes: told what was mended.

    Raises:
        DroppedRowError: it cannot be learned from.
    """
    turns = list(conversation.turns)
    while turns and not isinstance(turns[-1], AssistantTurn):
        turns.pop()
        _note(notes, "turns after the last assistant turn removed")
    while turns and isinstance(turns[0], AssistantTurn):
        turns.pop(0)
        _note(notes, "assistant turn before the first user turn removed")
    if not turns:
        raise DroppedRowError("no user turn that is answered")
    if not isinstance(turns[0], UserTurn):
        raise DroppedRowError("does not begin with a user turn")
    turns = [_matched(turns[number - 1], turn) for number, turn in enumerate(turns)]
    for before, turn in itertools.pairwise(turns):
        _check_order(before, turn)
    for turn in turns:
        if isinstance(turn, AssistantTurn):
            _check_assistant(turn, conversation.tools)
        elif isinstance(turn, UserTurn) and not turn.text.strip():
            raise DroppedRowError("empty user turn")
    return replace(conversation, turns=tuple(turns))


def _check_order(before: Turn, turn: Turn) -> None:
    asked = isinstance(before, AssistantTurn) and bool(before.calls)
    if isinstance(turn, ToolTurn):
        if not asked:
            raise DroppedRowError("tool result without a call")
    elif asked:
        raise DroppedRowError("call without a result")
    if type(before) is type(turn):
        raise DroppedRowError("two turns of one speaker in a row")


def _check_assistant(turn: AssistantTurn, tools: Sequence[ToolSpec]) -> None:
    if not turn.text.strip() and not turn.calls:
        raise DroppedRowError("empty assistant turn")
    by_name = {tool.name: tool for tool in tools}
    for call in turn.calls:
        if call.name not in by_name:
            raise DroppedRowError("call of a tool that is not offered")
        if by_name[call.name].argument_error(call.arguments) is not None:
            raise DroppedRowError("arguments do not fit the tool's signature")


def _matched(before: Turn, turn: Turn) -> Turn:
    """A tool turn with as many responses as there were calls; one list of results stands for its elements."""
    if not isinstance(turn, ToolTurn) or not isinstance(before, AssistantTurn):
        return turn
    wanted = len(before.calls)
    if len(turn.responses) == wanted or wanted == 0:
        return turn
    if len(turn.responses) == 1:
        parts = _json_list(turn.responses[0])
        if len(parts) == wanted:
            return ToolTurn(tuple(parts))
    raise DroppedRowError("results do not match the calls")


def _json_list(text: str) -> list[str]:
    """The elements of a JSON list as texts; empty for anything else."""
    try:
        values = json.loads(text)
    except ValueError:
        return []
    if not isinstance(values, list):
        return []
    return [value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) for value in values]


def _note(notes: list[str], text: str) -> None:
    if text not in notes:
        notes.append(text)
