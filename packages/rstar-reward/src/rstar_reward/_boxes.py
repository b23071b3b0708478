r"""Finding `\boxed{}` and `\fbox{}` with balanced braces, in one pass over the text."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["Box", "top_level_boxes"]

_MACRO = re.compile(r"\\(?:boxed|fbox|framebox)(?![a-zA-Z])\s*")
_BARE_NUMBER = re.compile(r"[-+]?[0-9][0-9.,/]*[0-9]|[-+]?[0-9]")


@dataclass(frozen=True)
class Box:
    """A box: its content, and where the macro starts and ends in the text."""

    content: str
    start: int
    end: int


def top_level_boxes(text: str) -> list[Box]:
    r"""The boxes that are not inside another box, in order; unclosed ones do not count.

    `\boxed 42` counts with its number, though TeX would frame one digit only.
    """
    if "\\boxed" not in text and "\\f" not in text:
        return []
    closing: dict[int, int] | None = None
    boxes: list[Box] = []
    position = 0
    while found := _MACRO.search(text, position):
        position = found.end()
        if text.startswith("{", position):
            if closing is None:
                closing = _closing_braces(text)
            end = closing.get(position)
            if end is None:
                continue
            boxes.append(Box(text[position + 1 : end], found.start(), end + 1))
            position = end + 1
        elif found.group().endswith((" ", "\t")) and (number := _BARE_NUMBER.match(text, position)):
            boxes.append(Box(number.group(), found.start(), number.end()))
            position = number.end()
    return boxes


_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)


def _closing_braces(text: str) -> dict[int, int]:
    """Position of each opening brace -> position of the brace that closes it; escaped braces are text."""
    pairs: dict[int, int] = {}
    open_at: list[int] = []
    for brace in _BRACE.finditer(text):
        if brace.group() == "{":
            open_at.append(brace.start())
        elif brace.group() == "}" and open_at:
            pairs[open_at.pop()] = brace.start()
    return pairs
