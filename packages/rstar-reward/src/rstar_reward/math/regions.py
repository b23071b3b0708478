r"""Sets of real numbers: intervals, unions, inequalities in one variable, `\mathbb{R}` without some points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cmp_to_key
from itertools import pairwise

from rstar_reward.math import nodes as n
from rstar_reward.math.rationals import NoValueError
from rstar_reward.math.values import real_value, same_value

__all__ = ["Region", "same_region", "to_region"]

_INFINITY = n.Symbol("inf")
_MINUS_INFINITY = n.Product((n.Number(Fraction(-1)), _INFINITY))
_FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "!=": "!="}


@dataclass(frozen=True)
class _Interval:
    low: n.Node
    low_closed: bool
    high: n.Node
    high_closed: bool


@dataclass(frozen=True)
class Region:
    """A union of intervals in order, and the variable it is about, None when none was named."""

    intervals: tuple[_Interval, ...]
    variable: str | None = None


def to_region(node: n.Node, pairs: bool) -> Region | None:
    """Reads a set of real numbers, None when the node is none.

    Args:
        node: the answer.
        pairs: read `(a, b)` and `[a, b]` as intervals rather than as points.
    """
    try:
        region = _read(node, pairs)
    except NoValueError:
        return None
    return region if region is None else Region(_merged(region.intervals), region.variable)


def same_region(one: Region, other: Region) -> bool:
    """True for the same set, about the same variable where both name one."""
    if one.variable and other.variable and one.variable != other.variable:
        return False
    return len(one.intervals) == len(other.intervals) and all(
        _same_interval(left, right) for left, right in zip(one.intervals, other.intervals, strict=True)
    )


def _same_interval(one: _Interval, other: _Interval) -> bool:
    return (
        one.low_closed == other.low_closed
        and one.high_closed == other.high_closed
        and _same_end(one.low, other.low)
        and _same_end(one.high, other.high)
    )


def _same_end(one: n.Node, other: n.Node) -> bool:
    left, right = real_value(one), real_value(other)
    if abs(left) == abs(right) == float("inf"):
        return bool(left == right)
    if abs(left) == float("inf") or abs(right) == float("inf"):
        return False
    return same_value(one, other)


def _read(node: n.Node, pairs: bool) -> Region | None:
    if isinstance(node, n.Sequence):
        return _sequence(node, pairs)
    if isinstance(node, n.Relation):
        return _relation(node)
    if isinstance(node, n.SetOperation):
        return _operation(node)
    if node == n.Symbol("Reals"):
        return Region((_Interval(_MINUS_INFINITY, False, _INFINITY, False),))
    if node == n.Symbol("emptyset"):
        return Region(())
    return None


def _sequence(node: n.Sequence, pairs: bool) -> Region | None:
    if node.opening == "\\{":
        return Region(tuple(_Interval(item, True, item, True) for item in node.items if real_value(item) is not None))
    if node.opening == "":
        return _alternatives(node)
    matched = (node.opening, node.closing) in (("(", ")"), ("[", "]"))
    if len(node.items) != 2 or (matched and not pairs):
        return None
    low, high = node.items
    if not real_value(low) < real_value(high):
        return None
    return Region((_interval(low, node.opening == "[", high, node.closing == "]"),))


def _interval(low: n.Node, low_closed: bool, high: n.Node, high_closed: bool) -> _Interval:
    """Infinite ends are never closed, however they were written."""
    infinity = float("inf")
    return _Interval(
        low,
        low_closed and abs(real_value(low)) != infinity,
        high,
        high_closed and abs(real_value(high)) != infinity,
    )


def _alternatives(node: n.Sequence) -> Region | None:
    """`x < 1 or x > 2`; inequalities joined by a comma may mean either, so they are left alone."""
    parts = [_read(item, pairs=False) for item in node.items]
    if not node.alternatives and not all(
        isinstance(item, n.Relation) and set(item.signs) == {"!="} for item in node.items
    ):
        return None
    known = [part for part in parts if part is not None]
    if len(known) != len(parts) or len({part.variable for part in known}) != 1 or known[0].variable is None:
        return None
    if node.alternatives:
        return Region(tuple(interval for part in known for interval in part.intervals), known[0].variable)
    points = [point for item in node.items if isinstance(item, n.Relation) for point in item.operands[1:]]
    return Region(_without_points(points), known[0].variable)


def _relation(node: n.Relation) -> Region | None:
    operands, signs = node.operands, node.signs
    if signs == ("in",) and isinstance(operands[0], n.Symbol):
        inner = _read(operands[1], pairs=True)
        return inner and Region(inner.intervals, operands[0].name)
    if not all(sign in _FLIPPED for sign in signs):
        return None
    if len(operands) == 2:
        left, right = operands
        if isinstance(right, n.Symbol) and right != _INFINITY and not isinstance(left, n.Symbol):
            left, right, signs = right, left, (_FLIPPED[signs[0]],)
        return _ray(left, signs[0], right)
    if len(operands) != 3 or not isinstance(operands[1], n.Symbol):
        return None
    low, middle, high = operands
    if signs[0] in (">", ">=") and signs[1] in (">", ">="):
        low, high, signs = high, low, (_FLIPPED[signs[1]], _FLIPPED[signs[0]])
    if not (signs[0] in ("<", "<=") and signs[1] in ("<", "<=")) or not real_value(low) < real_value(high):
        return None
    return Region((_interval(low, signs[0] == "<=", high, signs[1] == "<="),), _name(middle))


def _ray(variable: n.Node, sign: str, bound: n.Node) -> Region | None:
    if not isinstance(variable, n.Symbol) or abs(real_value(bound)) == float("inf"):
        return None
    name = _name(variable)
    if sign == "!=":
        return Region(_without_points([bound]), name)
    if sign in ("<", "<="):
        return Region((_Interval(_MINUS_INFINITY, False, bound, sign == "<="),), name)
    return Region((_Interval(bound, sign == ">=", _INFINITY, False),), name)


def _name(node: n.Node) -> str | None:
    return node.name if isinstance(node, n.Symbol) else None


def _operation(node: n.SetOperation) -> Region | None:
    if node.sign == "cup":
        parts = [_read(operand, pairs=True) for operand in node.operands]
        if any(part is None for part in parts):
            return None
        return Region(tuple(interval for part in parts if part is not None for interval in part.intervals))
    whole, removed = node.operands[0], node.operands[1]
    if node.sign != "setminus" or whole != n.Symbol("Reals") or not isinstance(removed, n.Sequence):
        return None
    return Region(_without_points(list(removed.items))) if removed.opening == "\\{" else None


def _without_points(points: Sequence[n.Node]) -> tuple[_Interval, ...]:
    """The real line without some points."""
    ordered = sorted(points, key=real_value)
    ends: list[n.Node] = [_MINUS_INFINITY, *ordered, _INFINITY]
    return tuple(
        _Interval(low, False, high, False) for low, high in pairwise(ends) if real_value(low) < real_value(high)
    )


def _merged(intervals: tuple[_Interval, ...]) -> tuple[_Interval, ...]:
    """In order, with overlapping and touching intervals joined."""

    def order(one: _Interval, other: _Interval) -> int:
        left, right = real_value(one.low), real_value(other.low)
        if left != right:
            return -1 if left < right else 1
        return int(other.low_closed) - int(one.low_closed)

    joined: list[_Interval] = []
    for interval in sorted(intervals, key=cmp_to_key(order)):
        last = joined[-1] if joined else None
        if last is not None:
            end, start = real_value(last.high), real_value(interval.low)
            if start < end or (start == end and (last.high_closed or interval.low_closed)):
                if real_value(interval.high) > end:
                    joined[-1] = _Interval(last.low, last.low_closed, interval.high, interval.high_closed)
                elif real_value(interval.high) == end:
                    closed = last.high_closed or interval.high_closed
                    joined[-1] = _Interval(last.low, last.low_closed, last.high, closed)
                continue
        joined.append(interval)
    return tuple(joined)
