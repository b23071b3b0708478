"""Values with units. A unit may be left out, but a stated one must fit; percent and degrees have rules of their own."""

from __future__ import annotations

import re
from fractions import Fraction

from rstar_reward.math import nodes as n
from rstar_reward.math.rationals import exact
from rstar_reward.math.units import known_unit, unit_key
from rstar_reward.math.values import same_value

__all__ = ["same_measured"]

_PLURAL_NOUN = re.compile(r"[a-z]{2,15}s")
_NO_NOUNS = frozenset({
    "less", "minus", "plus", "times", "pass", "unless", "as", "is", "has", "was", "yes", "this", "pairs", "tens",
    "hundreds", "thousands", "millions", "billions", "dozens", "halves", "thirds", "tenths", "hundredths",
    "thousandths", "quarters", "fifths", "eighths", "always", "others", "guess",
})  # fmt: skip
_Dimension = tuple[tuple[str, int], ...]
_PERCENT: _Dimension = (("percent", 1),)
_DEGREES: _Dimension = (("angle", 1),)
_RADIANS: _Dimension = (("radian", 1),)


def same_measured(one: n.Node, other: n.Node) -> bool:
    """True when both are the same quantity.

    Raises:
        NoValueError: one has no value.
        TooLargeError: one is out of reach.
    """
    left, right = _split(one), _split(other)
    if left.unknown or right.unknown:
        return _same_unknown(left, right)
    if _PERCENT in (left.dimension, right.dimension):
        return _same_percent(left, right)
    if left.dimension == right.dimension:
        return same_value(left.scaled(), right.scaled())
    if {left.dimension, right.dimension} <= {_DEGREES, _RADIANS, ()}:
        return _same_angle(left, right)
    # The unit of one side is understood.
    return () in (left.dimension, right.dimension) and same_value(left.value, right.value)


class _Quantity:
    def __init__(self, value: n.Node, dimension: _Dimension, factor: Fraction, unknown: str) -> None:
        self.value, self.dimension, self.factor, self.unknown = value, dimension, factor, unknown

    def scaled(self) -> n.Node:
        return self.value if self.factor == 1 else n.Product((n.Number(self.factor), self.value))


def _split(node: n.Node) -> _Quantity:
    dimension: _Dimension = ()
    factor, unknown = Fraction(1), ""
    while isinstance(node, n.Measured):
        known = known_unit(node.unit)
        if known is None:
            unknown = f"{unit_key(node.unit)} {unknown}".strip()
        elif known[0]:
            # "$5 dollars" says it twice.
            dimension, factor = known
        node = node.value
    return _Quantity(node, dimension, factor, unknown)


def _same_unknown(one: _Quantity, other: _Quantity) -> bool:
    if one.unknown and other.unknown and one.unknown.removesuffix("s") != other.unknown.removesuffix("s"):
        return False
    stray = other.unknown if not one.unknown else ""
    # Five sixths are not five.
    counted = _PLURAL_NOUN.fullmatch(stray) and stray not in _NO_NOUNS and not stray.endswith("ths")
    if stray and not counted:
        return False
    return one.dimension == other.dimension and same_value(one.scaled(), other.scaled())


def _same_percent(one: _Quantity, other: _Quantity) -> bool:
    if one.dimension == other.dimension:
        return same_value(one.value, other.value)
    if () not in (one.dimension, other.dimension):
        return False
    percent, plain = (one, other) if one.dimension == _PERCENT else (other, one)
    if same_value(n.Measured(percent.value, "%"), plain.value):
        return True
    # "What percent": 28 for 28 %. Not for small numbers, which may be shares.
    size = exact(plain.value)
    return size is not None and abs(size) > 1 and same_value(percent.value, plain.value)


def _same_angle(one: _Quantity, other: _Quantity) -> bool:
    if () in (one.dimension, other.dimension) and same_value(one.value, other.value):
        return True
    left, right = (n.Measured(side.value, "°") if side.dimension == _DEGREES else side.value for side in (one, other))
    return same_value(left, right)
