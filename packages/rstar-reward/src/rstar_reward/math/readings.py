r"""Answers that name what they are the value of: `x = 5`, `(x, y) = (1, 2)`, `a_3 = 2, a_4 = 7`, `n = 2, 3, 4`."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from rstar_reward.math import nodes as n
from rstar_reward.math.rationals import NoValueError
from rstar_reward.math.values import call_key, free_symbols, same_value

__all__ = ["ContradictionError", "Reading", "read"]


class ContradictionError(ValueError):
    """A chain of equal signs whose sides differ: it says nothing true."""


@dataclass(frozen=True)
class Reading:
    """The value of an answer and the names it is given to, None where none was stated or they do not matter."""

    names: tuple[str, ...] | None
    value: n.Node


def read(node: n.Node) -> Reading:
    """Separates names from values.

    Raises:
        ContradictionError: `2 = 3`.
    """
    if isinstance(node, n.Relation):
        return _relation(node)
    if isinstance(node, n.Sequence) and node.opening == "":
        return _list(node)
    return Reading(None, node)


def _relation(node: n.Relation) -> Reading:
    if "~" in node.signs:
        # "\sqrt2 \approx 1.41" declares \sqrt2; "x \approx 1.41" has nothing but the decimal.
        kept = node.signs.index("~")
        if kept == 0:
            named, _ = _names(node.operands[0])
            return Reading(None, node.operands[1] if named else node.operands[0])
        return _relation(n.Relation(node.operands[: kept + 1], node.signs[:kept]))
    if node.signs == ("in",) and isinstance(node.operands[1], n.Sequence) and node.operands[1].opening == "\\{":
        return Reading(_names(node.operands[0])[1], node.operands[1])
    if set(node.signs) != {"="}:
        return Reading(None, node)
    first, *others = node.operands
    named, names = _names(first)
    values = others if named else [first, *others]
    if not named and any(free_symbols(value) for value in values):
        return Reading(None, node)
    for one, other in pairwise(values):
        if not _equal(one, other):
            raise ContradictionError("the sides of an equation differ")
    return Reading(names, values[-1])


def _equal(one: n.Node, other: n.Node) -> bool:
    if one == other:
        return True
    try:
        return same_value(_bare(one), _bare(other))
    except NoValueError:
        return False


def _bare(node: n.Node) -> n.Node:
    return node.value if isinstance(node, n.Measured) else node


def _names(node: n.Node) -> tuple[bool, tuple[str, ...] | None]:
    """Whether a left side only names something, and the names where they matter."""
    if isinstance(node, n.Symbol) and node.name not in ("pi", "e", "i", "inf", "emptyset"):
        return True, (node.name,)
    if isinstance(node, n.Call):
        return True, (call_key(node),)
    if isinstance(node, n.Words):
        return True, None
    if isinstance(node, n.Sequence) and node.opening in ("(", ""):
        parts = [_names(item) for item in node.items]
        if all(named and names for named, names in parts):
            return True, tuple(name for _, names in parts if names for name in names)
        return False, None
    if isinstance(node, n.Ratio):
        return all(_names(part)[0] for part in node.parts), None
    if isinstance(node, (n.Sum, n.Product)) and not any(isinstance(part, (n.Number, n.Power)) for part in n.walk(node)):
        # a + b = 5 where a + b was asked for; 2x = 10 is an equation.
        return bool(free_symbols(node)), None
    if isinstance(node, n.Function) and node.name == "abs":
        # |AB| is a length; |x| = 5 does not say that x is 5.
        inner = node.arguments[0]
        return isinstance(inner, n.Symbol) and len(inner.name) > 1 and inner.name.isupper(), None
    return False, None


def _list(node: n.Sequence) -> Reading:
    parts = [read(item) for item in node.items]
    stated = [part.names for part in parts if part.names]
    values = tuple(part.value for part in parts)
    if not stated:
        return Reading(None, n.Sequence("", "", values, node.alternatives))
    if all(names == stated[0] for names in stated) and parts[0].names:
        # One name, or one tuple of names, for all values.
        return Reading(stated[0], n.Sequence("", "", values, node.alternatives))
    if len(stated) == len(parts) and all(len(names) == 1 for names in stated):
        names = tuple(name for part in stated for name in part)
        if len(set(names)) == len(names):
            return Reading(names, n.Sequence("(", ")", values))
    return Reading(None, node)
