"""Small trees from parts: signs, products, literals."""

from __future__ import annotations

from fractions import Fraction

from rstar_reward.math import nodes as n
from rstar_reward.math.lexer import ParseError

__all__ = ["as_base", "as_list", "items_of", "literal", "primed", "signed", "times"]

_MAX_LITERAL_DIGITS = 1500


def as_list(items: list[n.Node], alternatives: bool) -> n.Node:
    """One item as itself, several as a bare list."""
    return items[0] if len(items) == 1 else n.Sequence("", "", tuple(items), alternatives)


def items_of(node: n.Node) -> tuple[n.Node, ...]:
    """The items of a bare list; anything else is one item."""
    return node.items if isinstance(node, n.Sequence) and not node.opening else (node,)


def literal(text: str) -> n.Number:
    """A number from its digits."""
    text, _, power = text.lower().partition("e")
    whole, point, after = text.partition(".")
    if len(text) > _MAX_LITERAL_DIGITS:
        raise ParseError("a number with too many digits")
    value = Fraction(int((whole + after) or "0"), 10 ** len(after))
    if power:  # 1.5e8
        return n.Number(value * Fraction(10) ** int(power))
    return n.Number(value, len(after) if point and after else None, len((whole + after).lstrip("0")))


def signed(sign: str, node: n.Node) -> n.Node:
    """A node with a sign before it."""
    if sign == "-":
        if isinstance(node, n.Number):
            return n.Number(-node.value, node.decimals, node.significant)
        if isinstance(node, n.Measured):
            return n.Measured(signed("-", node.value), node.unit)
        return times(n.Number(Fraction(-1)), node)
    if sign in ("pm", "mp"):
        return n.PlusMinus(node, opposite=sign == "mp")
    return node


def times(left: n.Node, right: n.Node) -> n.Node:
    """A product, flat."""
    first = left.factors if isinstance(left, n.Product) else (left,)
    second = right.factors if isinstance(right, n.Product) else (right,)
    return n.Product((*first, *second))


def primed(node: n.Node) -> n.Node:
    """A name with a prime: f'."""
    if isinstance(node, n.Symbol):
        return n.Symbol(node.name + "'")
    if isinstance(node, n.Call):
        return n.Call(node.name + "'", node.arguments)
    raise ParseError("a prime that belongs to nothing")


_BASE_WORDS = {
    "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10, "twelve": 12,
    "sixteen": 16,
}  # fmt: skip


def as_base(text: str) -> int:
    """The base of a number system."""
    if text.lower() in _BASE_WORDS:
        return _BASE_WORDS[text.lower()]
    if not text.isdigit() or len(text) > 2:
        raise ParseError("a subscript that is no base")
    return int(text)
