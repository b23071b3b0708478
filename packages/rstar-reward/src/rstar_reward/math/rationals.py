"""The value of an expression where it is rational: exact, without any library."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

from rstar_reward.math import nodes as n

__all__ = ["NoValueError", "TooLargeError", "exact"]


class NoValueError(ValueError):
    """The node is not an expression with a value."""


class TooLargeError(ValueError):
    """Computing the value would take too long."""


_MAX_EXACT_BITS = 200_000
_MAX_FACTORIAL = 2000


def exact(node: n.Node) -> Fraction | None:
    """The rational value, None when it is not rational or not seen to be.

    Raises:
        NoValueError: the node has no value.
    """
    if isinstance(node, n.Number):
        return node.value
    if isinstance(node, n.Sum):
        return _fold([exact(term) for term in node.terms], lambda one, other: one + other)
    if isinstance(node, n.Product):
        return _fold([exact(factor) for factor in node.factors], lambda one, other: one * other)
    if isinstance(node, n.Quotient):
        above, below = exact(node.above), exact(node.below)
        if above is None or below is None:
            return None
        if below == 0:
            raise NoValueError("division by zero")
        return above / below
    if isinstance(node, n.Power):
        return _exact_power(exact(node.base), exact(node.exponent))
    if isinstance(node, n.Root):
        index = exact(node.index)
        return _exact_power(exact(node.radicand), 1 / index) if index else None
    if isinstance(node, n.Measured) and node.unit == "%":
        value = exact(node.value)
        return None if value is None else value / 100
    if isinstance(node, n.Function):
        return _exact_function(node)
    return None


def _fold(values: list[Fraction | None], join: Callable[[Fraction, Fraction], Fraction]) -> Fraction | None:
    result: Fraction | None = None
    for value in values:
        if value is None:
            return None
        result = value if result is None else join(result, value)
        if result.numerator.bit_length() + result.denominator.bit_length() > _MAX_EXACT_BITS:
            return None
    return result


def _exact_power(base: Fraction | None, exponent: Fraction | None) -> Fraction | None:
    if base is None or exponent is None:
        return None
    if base == 0:
        if exponent <= 0:
            raise NoValueError("zero to a power that is not positive")
        return Fraction(0)
    if exponent.denominator > 64 or abs(exponent) > _MAX_EXACT_BITS:
        return None
    rooted: Fraction | None = base
    if exponent.denominator != 1:
        rooted = _exact_root(base, exponent.denominator)
    if rooted is None:
        return None
    bits = max(rooted.numerator.bit_length(), rooted.denominator.bit_length())
    if bits * abs(exponent.numerator) > _MAX_EXACT_BITS and abs(rooted) != 1:
        return None
    return rooted**exponent.numerator


def _exact_root(value: Fraction, index: int) -> Fraction | None:
    if value < 0:
        return None
    parts = []
    for part in (value.numerator, value.denominator):
        root = _integer_root(part, index)
        if root**index != part:
            return None
        parts.append(root)
    return Fraction(parts[0], parts[1])


def _integer_root(value: int, index: int) -> int:
    if index == 2:
        return math.isqrt(value)
    low, high = 0, 1 << (value.bit_length() // index + 1)
    while low < high:
        middle = (low + high + 1) // 2
        if middle**index <= value:
            low = middle
        else:
            high = middle - 1
    return low


def _exact_function(node: n.Function) -> Fraction | None:
    values = [exact(argument) for argument in node.arguments]
    if any(value is None for value in values):
        return None
    known = [value for value in values if value is not None]
    integers = [int(value) for value in known if value.denominator == 1]
    whole = len(integers) == len(known)
    if node.name == "factorial" and whole and len(known) == 1 and 0 <= integers[0] <= _MAX_FACTORIAL:
        return Fraction(math.factorial(integers[0]))
    if node.name == "binom" and whole and len(known) == 2 and 0 <= integers[1] <= integers[0] <= _MAX_FACTORIAL:
        return Fraction(math.comb(integers[0], integers[1]))
    if node.name == "abs" and len(known) == 1:
        return abs(known[0])
    if node.name in ("floor", "ceil") and len(known) == 1:
        return Fraction(math.floor(known[0]) if node.name == "floor" else math.ceil(known[0]))
    if node.name in ("max", "min"):
        return max(known) if node.name == "max" else min(known)
    if node.name in ("gcd", "lcm") and whole:
        return Fraction(math.gcd(*integers) if node.name == "gcd" else math.lcm(*integers))
    return None
