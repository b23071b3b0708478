"""Finds the tool calls in a turn.

A call is one JSON object between an opening and a closing tag. The object is read by its own boundaries, so any
text, closing tags included, may stand in its strings. Every malformed form has a typed outcome with a message
that the policy gets to read; a malformed call never hides the other calls of the turn.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

__all__ = ["MalformedCall", "MalformedKind", "ParsedTurn", "ToolCall", "ToolCallParser"]

_SPACE = re.compile(r"[ \t\r\n]*")
_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"|[][{}]', re.DOTALL)


class MalformedKind(str, Enum):
    """What is wrong with a call."""

    INVALID_JSON = "invalid_json"
    """No JSON at all, or broken off; an empty call too."""
    NOT_A_JSON_VALUE = "not_a_json_value"
    """NaN or an infinity, which Python's reader would take, `1e999` too."""
    REPEATED_KEY = "repeated_key"
    TOO_DEEP = "too_deep"
    NUMBER_TOO_LONG = "number_too_long"
    NOT_AN_OBJECT = "not_an_object"
    BAD_NAME = "bad_name"
    BAD_ARGUMENTS = "bad_arguments"
    TEXT_AFTER_OBJECT = "text_after_object"
    INVALID_TEXT = "invalid_text"
    """A string that is no Unicode text: an unpaired surrogate."""


@dataclass(frozen=True)
class ToolCall:
    """A well-formed call; ``position`` is the character offset of its opening tag in the turn."""

    name: str
    arguments: dict[str, Any]
    position: int

    @property
    def arguments_json(self) -> str:
        """The arguments as compact JSON."""
        return json.dumps(self.arguments, ensure_ascii=False)


@dataclass(frozen=True)
class MalformedCall:
    """A call that cannot run; ``message`` says what is wrong and where, for the policy to read."""

    message: str
    position: int
    kind: MalformedKind = MalformedKind.INVALID_JSON


@dataclass(frozen=True)
class ParsedTurn:
    """Calls of a turn in their order; ``unclosed``: the turn ended inside an opened call, which is not in ``calls``."""

    calls: tuple[ToolCall | MalformedCall, ...]
    unclosed: bool


class _RefusedValueError(ValueError):
    """JSON that Python would accept but that is not a valid call."""

    def __init__(self, reason: str, kind: MalformedKind) -> None:
        super().__init__(reason)
        self.kind = kind


def _refuse_constant(text: str) -> None:
    raise _RefusedValueError(f"{text} is not a JSON value", MalformedKind.NOT_A_JSON_VALUE)


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise _RefusedValueError(f"{text} is beyond the range of numbers", MalformedKind.NOT_A_JSON_VALUE)
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _RefusedValueError(f"key {key!r} appears twice", MalformedKind.REPEATED_KEY)
            seen.add(key)
    return record


class ToolCallParser:
    """Reads calls written as ``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``.

    Args:
        open_tag: what opens a call.
        close_tag: what closes it.
    """

    def __init__(self, open_tag: str = "<tool_call>", close_tag: str = "</tool_call>") -> None:
        self.open_tag = open_tag
        self.close_tag = close_tag
        self._decoder = json.JSONDecoder(
            parse_float=_finite, parse_constant=_refuse_constant, object_pairs_hook=_unique_keys
        )

    def parse(self, text: str) -> ParsedTurn:
        """All calls of one turn. ``text`` must hold the turn as generated, special tokens visible."""
        calls: list[ToolCall | MalformedCall] = []
        end = 0
        while (start := text.find(self.open_tag, end)) >= 0:
            call, resume = self._read_call(text, start)
            if resume is None:
                return ParsedTurn(tuple(calls), unclosed=True)
            calls.append(call)
            end = resume
        return ParsedTurn(tuple(calls), unclosed=False)

    def _read_call(self, text: str, start: int) -> tuple[ToolCall | MalformedCall, int | None]:
        """The call whose opening tag is at ``start`` and where reading goes on; None: it is not closed."""
        body = _after_space(text, start + len(self.open_tag))
        try:
            value, end = self._decoder.raw_decode(text, body)
        except json.JSONDecodeError as error:
            reason = f"invalid JSON at character {error.pos - body}: {error.msg}"
            # A string without end swallows the closing tag; the tag after the call's start still ends it.
            return self._malformed(text, start, error.pos, reason, MalformedKind.INVALID_JSON)
        except RecursionError:
            return self._malformed(text, start, _value_end(text, body), "nested too deeply", MalformedKind.TOO_DEEP)
        except _RefusedValueError as error:
            return self._malformed(text, start, _value_end(text, body), str(error), error.kind)
        except ValueError:  # Python reads no integer of more than some thousand digits
            reason = "a number is too long"
            return self._malformed(text, start, _value_end(text, body), reason, MalformedKind.NUMBER_TOO_LONG)
        close = _after_space(text, end)
        if not text.startswith(self.close_tag, close):
            reason = f"text after the JSON object at character {close - body}; one object per call"
            return self._malformed(text, start, end, reason, MalformedKind.TEXT_AFTER_OBJECT)
        return _checked(value, start), close + len(self.close_tag)

    def _malformed(
        self, text: str, start: int, error_at: int, reason: str, kind: MalformedKind
    ) -> tuple[MalformedCall, int | None]:
        call = MalformedCall(f"Tool call not parsed: {reason}", start, kind)
        close = text.find(self.close_tag, error_at)
        resume: int | None = None
        if close >= 0:
            reopened = text.find(self.open_tag, error_at)  # a call left open must not swallow the next one
            resume = reopened if 0 <= reopened < close else close + len(self.close_tag)
        hidden = self._well_formed_between(text, start + len(self.open_tag), len(text) if resume is None else resume)
        return call, resume if hidden is None else hidden

    def _well_formed_between(self, text: str, begin: int, end: int) -> int | None:
        """Where the first well-formed call opens.

        A string without end runs into the quotes of the next call. No string that has an end holds one: its quotes
        are escaped.
        """
        while (start := text.find(self.open_tag, begin, end)) >= 0:
            begin = start + len(self.open_tag)
            try:
                value, after = self._decoder.raw_decode(text, _after_space(text, begin))
            except (ValueError, RecursionError):
                continue
            if text.startswith(self.close_tag, _after_space(text, after)) and isinstance(
                _checked(value, start), ToolCall
            ):
                return start
        return None


def _value_end(text: str, body: int) -> int:
    """Where an object or array that was read but refused ends; ``body``, where it begins, if its end is not there."""
    depth = 0
    for found in _STRING_OR_BRACKET.finditer(text, body):
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(found.group(), 0)
        if depth == 0:
            return found.end()
    return body


def _after_space(text: str, position: int) -> int:
    match = _SPACE.match(text, position)
    return match.end() if match else position


def _checked(value: object, position: int) -> ToolCall | MalformedCall:
    if not isinstance(value, Mapping):
        reason = f"expected a JSON object, found {type(value).__name__}"
        return MalformedCall(f"Tool call not parsed: {reason}", position, MalformedKind.NOT_AN_OBJECT)
    name = value.get("name")
    if not isinstance(name, str) or not name:
        reason = '"name" must be the name of a tool'
        return MalformedCall(f"Tool call not parsed: {reason}", position, MalformedKind.BAD_NAME)
    arguments = value.get("arguments")
    if not isinstance(arguments, dict):
        reason = '"arguments" must be a JSON object'
        return MalformedCall(f"Tool call not parsed: {reason}", position, MalformedKind.BAD_ARGUMENTS)
    try:
        json.dumps([name, arguments], ensure_ascii=False).encode("utf-8")
    except (UnicodeEncodeError, RecursionError):
        reason = "a string holds an unpaired surrogate"
        return MalformedCall(f"Tool call not parsed: {reason}", position, MalformedKind.INVALID_TEXT)
    return ToolCall(name, arguments, position)
