"""Tool calls as data sets write them: JSON objects, JSON with quoted arguments, Python call lists."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from rstar_trainer.demonstrations.conversation import Call, DroppedRowError

__all__ = ["call_from_json", "calls_from_python"]

_QUOTED_ARGUMENTS = re.compile(
    r'^\s*\{\s*"name"\s*:\s*"(?P<name>[^"]+)"\s*,\s*"arguments"\s*:\s*\'(?P<text>.*)\'\s*\}\s*$', re.S
)
_NAMES = {"true": True, "false": False, "null": None, "none": None}


def call_from_json(value: Any) -> Call:
    """A call from `{"name": ..., "arguments": ...}`, as object or as text; arguments may be JSON text themselves.

    Raises:
        DroppedRowError: it is none.
    """
    if isinstance(value, str):
        quoted = _QUOTED_ARGUMENTS.match(value)
        # Single quotes around JSON: Glaive's way.
        unquoted = {"name": quoted["name"], "arguments": quoted["text"].replace("\\'", "'")} if quoted else None
        value = unquoted or _loads(value)
    if isinstance(value, Mapping) and isinstance(value.get("function"), Mapping):
        value = value["function"]
    if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
        raise DroppedRowError("a call without a name")
    arguments = value.get("arguments", value.get("parameters", {}))
    if isinstance(arguments, str):
        arguments = _loads(arguments) if arguments.strip() else {}
    if arguments is None:
        arguments = {}
    if not isinstance(arguments, Mapping):
        raise DroppedRowError("arguments of a call are no object")
    return Call(value["name"], dict(arguments))


def calls_from_python(text: str) -> tuple[Call, ...]:
    """Calls from `[first name(a="x", b=[1]), second(c=True)]`; names may hold spaces and dots.

    Returns:
        The calls; none when the text is not such a list.

    Raises:
        DroppedRowError: it is a list of calls, but an argument cannot be read.
    """
    body = text.strip()
    if not (body.startswith("[") and body.endswith("]") and "(" in body):
        return ()
    calls = []
    for part in _split(body[1:-1]):
        name, open_, rest = part.partition("(")
        if not open_ or not rest.endswith(")") or not re.fullmatch(r"[^\[\]{}\"'=,:]+", name.strip()):
            return ()
        calls.append(Call(name.strip(), _keywords(rest[:-1])))
    return tuple(calls)


def _keywords(text: str) -> dict[str, Any]:
    try:
        call = ast.parse(f"f({text})", mode="eval").body
        if not isinstance(call, ast.Call) or call.args or any(keyword.arg is None for keyword in call.keywords):
            raise ValueError("positional")
        return {str(keyword.arg): _value(keyword.value) for keyword in call.keywords}
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise DroppedRowError("arguments of a Python call cannot be read") from error


def _value(node: ast.expr) -> Any:
    """A literal, where JSON's names for true, false and null are literals too."""

    class Names(ast.NodeTransformer):
        def visit_Name(self, name: ast.Name) -> ast.expr:
            if name.id.lower() not in _NAMES:
                raise ValueError(name.id)
            return ast.Constant(_NAMES[name.id.lower()])

    value = ast.literal_eval(ast.fix_missing_locations(Names().visit(node)))
    json.dumps(value)  # what JSON cannot say cannot be an argument
    return value


def _split(text: str) -> Iterator[str]:
    """Parts between commas outside of brackets and quotes."""
    depth, quote, start, skip = 0, "", 0, False
    for place, letter in enumerate(text):
        if skip:
            skip = False
        elif quote:
            skip = letter == "\\"
            quote = "" if letter == quote else quote
        elif letter in "\"'" and depth:
            quote = letter
        elif letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        elif letter == "," and depth == 0:
            yield text[start:place].strip()
            start = place + 1
    yield text[start:].strip()


def _loads(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DroppedRowError("a call that is not readable JSON") from error
