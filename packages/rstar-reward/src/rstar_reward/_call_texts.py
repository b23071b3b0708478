"""Reading function calls that a model wrote: JSON in tags, bare JSON, or Python's call syntax. Nothing is evaluated."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

__all__ = ["Call", "CallSyntaxError", "read_calls", "strict_json"]

_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_MAX_DEPTH = 40
_PYTHON_NAMES = {"true": True, "false": False, "null": None}


class CallSyntaxError(ValueError):
    """The text is no calls."""


@dataclass(frozen=True)
class Call:
    """A function's name and its arguments by name."""

    name: str
    arguments: dict[str, Any]


def read_calls(text: str) -> list[Call]:
    """The calls in a text that holds nothing else.

    Raises:
        CallSyntaxError: it holds something else, or what it holds is cut off.
    """
    if _OPEN in text:
        return [call for block in _blocks(text) for call in _from_json(strict_json(block))]
    if text.lstrip().startswith(("{", '[{"', "[ {", "[\n")) or text.strip() == "[]":
        return _from_json(strict_json(text))
    return _from_python(text)


def strict_json(text: str) -> Any:
    """A JSON value in which no key stands twice: of two values, one would be a hedge.

    Raises:
        CallSyntaxError: it is none, or nested too deeply.
    """
    _limit_depth(text)
    try:
        return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant)
    except CallSyntaxError:
        raise
    except (ValueError, RecursionError) as error:
        raise CallSyntaxError(str(error)[:100]) from error


def _blocks(text: str) -> Iterable[str]:
    position = 0
    while (start := text.find(_OPEN, position)) >= 0:
        # A closing tag may stand inside a string of the JSON; the last one before the next opening tag closes.
        following = text.find(_OPEN, start + len(_OPEN))
        end = text.rfind(_CLOSE, start, following if following >= 0 else len(text))
        if end < 0:
            raise CallSyntaxError("a <tool_call> that is not closed")
        yield text[start + len(_OPEN) : end]
        position = end + len(_CLOSE)


def _from_json(value: Any) -> list[Call]:
    calls = []
    for entry in value if isinstance(value, list) else [value]:
        if not (isinstance(entry, dict) and isinstance(entry.get("name"), str)):
            raise CallSyntaxError("a call needs a name")
        arguments = entry.get("arguments", entry.get("parameters", {}))
        if not isinstance(arguments, dict) or len(entry) > 2:
            raise CallSyntaxError("a call needs name and arguments, and nothing else")
        calls.append(Call(entry["name"], arguments))
    return calls


def _from_python(text: str) -> list[Call]:
    _limit_depth(text)
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        raise CallSyntaxError(str(error)[:100]) from error
    return [_python_call(node) for node in (tree.elts if isinstance(tree, (ast.List, ast.Tuple)) else [tree])]


def _python_call(node: ast.expr) -> Call:
    if not isinstance(node, ast.Call) or node.args:
        raise CallSyntaxError("a call with arguments by name is needed")
    arguments: dict[str, Any] = {}
    for keyword in node.keywords:
        if keyword.arg is None or keyword.arg in arguments:
            raise CallSyntaxError("each argument needs a name of its own")
        arguments[keyword.arg] = _literal(keyword.value)
    return Call(_dotted(node.func), arguments)


def _dotted(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return f"{_dotted(node.value)}.{node.attr}"
    if isinstance(node, ast.Name):
        return node.id
    raise CallSyntaxError("a function is called by its name")


def _literal(node: ast.expr) -> Any:
    if isinstance(node, ast.Constant) and isinstance(node.value, (str, int, float, type(None))):
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
        value = node.operand.value
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return -value
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_literal(item) for item in node.elts]
    if isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys):
        keys = [_literal(key) for key in node.keys if key is not None]
        return _unique(list(zip(keys, map(_literal, node.values), strict=True)))
    if isinstance(node, ast.Name):
        # Languages differ in how they write these; any other name stands for itself.
        return _PYTHON_NAMES.get(node.id, node.id)
    raise CallSyntaxError("an argument that is no plain value")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise CallSyntaxError("a key that stands twice")
    return found


def _no_constant(name: str) -> None:
    raise CallSyntaxError(f"{name} is no JSON")


def _limit_depth(text: str) -> None:
    depth = 0
    for character in text:
        if character in "([{":
            depth += 1
            if depth > _MAX_DEPTH:
                raise CallSyntaxError(f"nested more than {_MAX_DEPTH} deep")
        elif character in ")]}":
            depth -= 1
