"""Whether two expressions have the same value: exact where both are rational, else to hundreds of digits with mpmath.

Runs in worker processes only. Nothing is simplified: two expressions are the same when they agree at several points
to hundreds of digits, which no near miss survives.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import Any

import mpmath  # type: ignore[import-untyped]

from rstar_reward.math import nodes as n
from rstar_reward.math.rationals import NoValueError, TooLargeError, exact

__all__ = ["call_key", "free_symbols", "numeric", "real_value", "same_value", "same_zeros"]


_MAX_EXPONENT = 10**12
_MAX_ARGUMENT_BITS = 4000
_ROUNDED_DIGITS = 10
_CONSTANTS = frozenset({"pi", "e", "i", "inf", "emptyset", "Reals", "Integers", "Naturals", "Rationals", "Complexes"})


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "sin": mpmath.sin, "cos": mpmath.cos, "tan": mpmath.tan, "cot": mpmath.cot, "sec": mpmath.sec, "csc": mpmath.csc,
    "arcsin": mpmath.asin, "arccos": mpmath.acos, "arctan": mpmath.atan, "arccot": mpmath.acot, "sinh": mpmath.sinh,
    "cosh": mpmath.cosh, "tanh": mpmath.tanh, "ln": mpmath.log, "exp": mpmath.exp, "abs": abs,
    "floor": mpmath.floor, "ceil": mpmath.ceil, "binom": mpmath.binomial, "max": max, "min": min,
    "arcsinh": mpmath.asinh, "arccosh": mpmath.acosh, "arctanh": mpmath.atanh,
}  # fmt: skip
# Their arguments are reduced, or turned into an exponent, which costs as many digits as the argument has.
_SENSITIVE = frozenset({"sin", "cos", "tan", "cot", "sec", "csc", "exp", "sinh", "cosh", "tanh", "floor", "ceil"})


def numeric(node: n.Node, point: Mapping[str, Any]) -> Any:
    """The value at mpmath's working precision.

    Args:
        node: an expression.
        point: a value for each free symbol.

    Raises:
        NoValueError: it has none there.
        TooLargeError: it is out of reach.
    """
    if isinstance(node, n.Number):
        return mpmath.mpf(node.value.numerator) / node.value.denominator
    if isinstance(node, n.Symbol):
        return _symbol(node.name, point)
    if isinstance(node, n.Call):
        return _symbol(call_key(node), point)
    if isinstance(node, n.Sum):
        return mpmath.fsum([numeric(term, point) for term in node.terms])
    if isinstance(node, n.Product):
        return mpmath.fprod([numeric(factor, point) for factor in node.factors])
    if isinstance(node, n.Quotient):
        below = numeric(node.below, point)
        if below == 0:
            raise NoValueError("division by zero")
        return numeric(node.above, point) / below
    if isinstance(node, n.Power):
        return _power(numeric(node.base, point), numeric(node.exponent, point))
    if isinstance(node, n.Root):
        return _root(numeric(node.radicand, point), numeric(node.index, point))
    if isinstance(node, n.Function):
        return _function(node, point)
    if isinstance(node, n.Measured):
        value = numeric(node.value, point)
        if node.unit == "%":
            return value / 100
        if node.unit == "°":
            return value * mpmath.pi / 180
    raise NoValueError("not an expression")


def _symbol(name: str, point: Mapping[str, Any]) -> Any:
    if name == "pi":
        return +mpmath.pi
    if name == "e":
        return +mpmath.e
    if name == "i":
        return mpmath.mpc(0, 1)
    if name not in point:
        raise NoValueError(f"{name} has no value")
    return point[name]


def _power(base: Any, exponent: Any) -> Any:
    if base == 0:
        if mpmath.re(exponent) <= 0:
            raise NoValueError("zero to a power that is not positive")
        return mpmath.mpf(0)
    if abs(exponent) > _MAX_EXPONENT or abs(mpmath.mag(base)) > _MAX_EXPONENT:
        raise TooLargeError("a power with a huge exponent")
    return mpmath.power(base, exponent)


def _root(radicand: Any, index: Any) -> Any:
    if index == 0 or abs(index) > 10_000:
        raise NoValueError("a root of this index")
    odd = mpmath.isint(index) and int(index) % 2 == 1
    if odd and mpmath.im(radicand) == 0 and mpmath.re(radicand) < 0:
        return -_power(-radicand, 1 / mpmath.mpf(index))
    return _power(radicand, 1 / mpmath.mpmathify(index))


def _function(node: n.Function, point: Mapping[str, Any]) -> Any:
    arguments = [numeric(argument, point) for argument in node.arguments]
    if node.name == "factorial":
        value = arguments[0]
        if abs(value) > _MAX_EXPONENT:
            raise TooLargeError("a factorial of a huge number")
        if mpmath.isint(value) and mpmath.re(value) < 0:
            raise NoValueError("the factorial of a negative whole number")
        return mpmath.gamma(value + 1)
    if node.name == "log":
        base = arguments[1] if len(arguments) > 1 else mpmath.mpf(10)
        if arguments[0] == 0 or base in (0, 1):
            raise NoValueError("a logarithm without value")
        return mpmath.log(arguments[0]) / mpmath.log(base)
    function = _FUNCTIONS.get(node.name)
    if function is None or (node.name == "ln" and arguments[0] == 0):
        raise NoValueError(f"{node.name} has no value here")
    if node.name in _SENSITIVE and arguments[0] != 0 and mpmath.mag(arguments[0]) > _MAX_ARGUMENT_BITS:
        raise TooLargeError(f"{node.name} of a huge number")
    if node.name == "binom" and abs(arguments[0]) > _MAX_EXPONENT:
        raise TooLargeError("a binomial coefficient of a huge number")
    try:
        return function(*arguments)
    except (TypeError, ZeroDivisionError) as error:
        raise NoValueError(f"{node.name} has no value here") from error


def call_key(node: n.Call) -> str:
    """A name for one value of a function that is only named, so that f(2) is the same wherever it stands."""
    return f"{node.name}({'; '.join(str(exact(argument) or argument) for argument in node.arguments)})"


def free_symbols(node: n.Node) -> set[str]:
    """The names whose values an expression depends on."""
    names: set[str] = set()
    stack = [node]
    while stack:
        current = stack.pop()
        if isinstance(current, n.Call):
            names.add(call_key(current))
        elif isinstance(current, n.Symbol):
            if current.name not in _CONSTANTS:
                names.add(current.name)
        else:
            stack += list(n.children(current))
    return names


def real_value(node: n.Node) -> Any:
    """The value of a constant as a real number, for ordering; infinity for `inf`.

    Raises:
        NoValueError: it is no real constant.
    """
    if node == n.Symbol("inf"):
        return mpmath.inf
    if isinstance(node, n.Product) and n.Symbol("inf") in node.factors:
        sign = exact(n.Product(tuple(factor for factor in node.factors if factor != n.Symbol("inf"))))
        if sign is None or sign == 0:
            raise NoValueError("infinity times something unknown")
        return mpmath.inf if sign > 0 else -mpmath.inf
    with mpmath.workdps(40):
        value = numeric(node, {})
        if mpmath.im(value) != 0:
            raise NoValueError("not a real number")
        return mpmath.re(value)


def same_value(one: n.Node, other: n.Node) -> bool:
    """True when both expressions have the same value, for all values of their symbols.

    A decimal of at least ten significant digits that correctly rounds an exact value counts as it.

    Raises:
        NoValueError: one of them is not an expression.
        TooLargeError: one of them is out of reach.
    """
    left, right = exact(one), exact(other)
    if left is not None and right is not None:
        return left == right or _rounds(one, other) or _rounds(other, one)
    if _is_decimal(one) or _is_decimal(other):
        # An irrational number is no short decimal.
        return _rounds(one, other) or _rounds(other, one)
    names = free_symbols(one) | free_symbols(other)
    checked = 0
    for point in _points(names):
        agreed = _agree(one, other, point)
        if agreed is False:
            return False
        checked += agreed is True
    return checked >= (3 if names else 1)


def same_zeros(one: n.Node, other: n.Node, positive: bool = False) -> bool:
    """True when one expression is a constant multiple of the other: their equations have the same solutions.

    Args:
        one: an expression.
        other: an expression.
        positive: the multiple must be positive, as for inequalities.
    """
    names = free_symbols(one)
    if not names or names != free_symbols(other):
        return False
    ratios = []
    with mpmath.workdps(_HIGH_DIGITS):
        for point in _points(names):
            left, right = _value(one, point), _value(other, point)
            if left is None or right is None or right == 0:
                continue
            ratios.append(left / right)
        if len(ratios) < 3 or ratios[0] == 0:
            return False
        tolerance = abs(ratios[0]) * mpmath.mpf(10) ** (20 - _HIGH_DIGITS)
        if positive and not (mpmath.re(ratios[0]) > 0 and abs(mpmath.im(ratios[0])) <= tolerance):
            return False
        return all(abs(ratio - ratios[0]) <= tolerance for ratio in ratios)


def _is_decimal(node: n.Node) -> bool:
    return isinstance(node, n.Number) and node.decimals is not None


def _rounds(decimal: n.Node, value: n.Node) -> bool:
    if not isinstance(decimal, n.Number) or decimal.decimals is None or decimal.significant < _ROUNDED_DIGITS:
        return False
    if isinstance(value, n.Number) and (value.decimals is not None or value.value.denominator == 1):
        return False
    if free_symbols(value):
        return False
    with mpmath.workdps(decimal.significant + decimal.decimals + 30):
        found = numeric(value, {})
        if mpmath.im(found) != 0:
            return False
        return bool(abs(numeric(decimal, {}) - found) * 2 <= mpmath.mpf(10) ** -decimal.decimals)


_LOW_DIGITS, _HIGH_DIGITS = 50, 400


def _agree(one: n.Node, other: n.Node, point: Mapping[str, Fraction]) -> bool | None:
    """Whether two expressions agree at a point; None where one has no value there."""
    low = _difference(one, other, point, _LOW_DIGITS)
    if low is None:
        return None
    difference, scale = low
    tiny = mpmath.mpf(10) ** (10 - _LOW_DIGITS)
    if difference > tiny * max(scale, tiny):
        return False
    high = _difference(one, other, point, _HIGH_DIGITS)
    if high is None:
        return None
    difference_high, scale_high = high
    if difference_high <= mpmath.mpf(10) ** (20 - _HIGH_DIGITS) * scale_high:
        return True
    # Both are nothing but rounding noise around zero when more digits make them vanish.
    return bool(difference_high <= difference * mpmath.mpf(10) ** -100)


def _difference(one: n.Node, other: n.Node, point: Mapping[str, Fraction], digits: int) -> tuple[Any, Any] | None:
    with mpmath.workdps(digits):
        left, right = _value(one, point), _value(other, point)
        if left is None or right is None:
            return None
        if (mpmath.im(left) == 0) != (mpmath.im(right) == 0) and any(value < 0 for value in point.values()):
            # One is not defined over the reals there: a matter of domain, not of value.
            return None
        return abs(left - right), max(abs(left), abs(right))


def _value(node: n.Node, point: Mapping[str, Fraction]) -> Any | None:
    values = {name: mpmath.mpf(value.numerator) / value.denominator for name, value in point.items()}
    try:
        value = numeric(node, values)
    except (NoValueError, ZeroDivisionError, OverflowError):
        if not point:
            raise NoValueError("no value") from None
        return None
    return value if mpmath.isfinite(value) else None


def _points(names: Iterable[str]) -> list[dict[str, Fraction]]:
    """Points with positive coordinates, then some with signs of both kinds; the same for the same names."""
    ordered = sorted(names)
    if not ordered:
        return [{}]
    generator = random.Random("/".join(ordered))  # noqa: S311 - test points, not secrets
    points = []
    for index in range(7):
        point = {}
        for name in ordered:
            value = Fraction(generator.randrange(10_037, 39_989), 10_007)
            point[name] = -value if index >= 4 and generator.random() < 0.6 else value
        points.append(point)
    return points
