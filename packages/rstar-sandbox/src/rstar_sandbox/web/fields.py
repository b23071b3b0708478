"""Reading fields of a JSON body, refusing what does not fit by name."""

from __future__ import annotations

from typing import Any, TypeVar

from rstar_protos.errors import UserInputError

__all__ = ["field", "text_or_none"]

Value = TypeVar("Value")


def field(body: dict[str, Any], name: str, kind: type[Value], default: Value | None = None) -> Value:
    """A field of a body; absent or null: the default.

    Args:
        body: a JSON object.
        name: of the field.
        kind: what it has to be; float takes whole numbers too.
        default: None: the field must be there.

    Raises:
        UserInputError: it is missing or of another kind.
    """
    value = body.get(name)
    if value is None:
        if default is None:
            raise UserInputError.message(f"{name}: it is missing; accepted: {_words(kind)}")
        return default
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise UserInputError(name, value, _words(kind))
    return value


def text_or_none(body: dict[str, Any], name: str) -> str | None:
    """A text that may be absent.

    Raises:
        UserInputError: it is something else than a text.
    """
    return None if body.get(name) is None else field(body, name, str)


def _words(kind: type) -> str:
    words = {str: "a text", float: "a number", int: "a whole number", list: "a list", dict: "an object"}
    return words.get(kind, kind.__name__)
