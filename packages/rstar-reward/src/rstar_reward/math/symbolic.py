r"""math-verify and SymPy on one extracted pair, followed by a veto. Runs in worker processes only.

math-verify finds equality generously: rounded floats, 15 digits. Its yes counts only when an independent check, exact
or numeric at 30 digits and at several points, finds no difference. Texts reach only the ANTLR grammar of
latex2sympy; `parse_expr`, `sympify` and `eval` never see them, which importing this module makes certain for the whole
process.
"""

from __future__ import annotations

import logging
import random
from typing import Any

import sympy  # type: ignore[import-untyped]
from math_verify import LatexExtractionConfig, parse, verify  # type: ignore[import-untyped]

from rstar_reward.math._no_evaluation import forbid_evaluation

__all__ = ["symbolic_parse", "symbolically_equal"]

forbid_evaluation()

# It warns about disabled timeouts on every call; the process kill is our timeout.
logging.getLogger("math_verify").setLevel(logging.CRITICAL)
logging.getLogger("latex2sympy2_extended").setLevel(logging.CRITICAL)

_DIGITS = 30
_POINTS = 4
_TARGETS = (LatexExtractionConfig(),)


def symbolic_parse(text: str) -> list[Any]:
    """What math-verify reads in a normalised answer; empty when it can read nothing."""
    # A dollar inside would end the formula that is wrapped around it.
    parsed = parse(
        f"${text.replace('$', '')}$",
        extraction_config=_TARGETS,
        fallback_mode="no_fallback",
        extraction_mode="first_match",
        parsing_timeout=None,
    )
    return [item for item in parsed if not isinstance(item, str)]


def symbolically_equal(gold: str, candidate: str) -> bool | None:
    """True when math-verify finds both equal and the veto finds no difference; None when one cannot be read."""
    one, other = symbolic_parse(gold), symbolic_parse(candidate)
    if not one or not other:
        return None
    if not verify(one, other, float_rounding=_DIGITS, numeric_precision=_DIGITS, timeout_seconds=None):
        return False
    return _no_difference(one[0], other[0])


def _no_difference(one: Any, other: Any) -> bool:
    """The veto: an independent and stricter look at a pair that was found equal."""
    one, other = _exact(one), _exact(other)
    if one == other:
        return True
    if isinstance(one, sympy.Eq) and not isinstance(other, sympy.Eq):
        return _no_difference(one.rhs, other)
    if isinstance(other, sympy.Eq) and not isinstance(one, sympy.Eq):
        return _no_difference(one, other.rhs)
    if isinstance(one, sympy.Expr) and isinstance(other, sympy.Expr):
        return _same_value(one, other)
    if isinstance(one, sympy.MatrixBase) and isinstance(other, sympy.MatrixBase):
        return one.shape == other.shape and all(
            _no_difference(left, right) for left, right in zip(one, other, strict=True)
        )
    if isinstance(one, sympy.Interval) and isinstance(other, sympy.Interval):
        return _no_difference(one.start, other.start) and _no_difference(one.end, other.end)
    if isinstance(one, (sympy.FiniteSet, sympy.Tuple)) and isinstance(other, (sympy.FiniteSet, sympy.Tuple)):
        return _same_members(one, other)
    if isinstance(one, sympy.core.relational.Relational) and type(one) is type(other):
        return _proportional(one.lhs - one.rhs, other.lhs - other.rhs, allow_negative=isinstance(one, sympy.Eq))
    # Nothing that can be checked independently: only identity is certain, and that was not found.
    return False


def _exact(value: Any) -> Any:
    """Decimals as the rationals they were written as."""
    try:
        floats = value.atoms(sympy.Float)
        return value.xreplace({number: sympy.Rational(str(number)) for number in floats}) if floats else value
    except (AttributeError, TypeError, ValueError):
        return value


def _same_members(one: Any, other: Any) -> bool:
    left, right = list(one.args), list(other.args)
    if len(left) != len(right):
        return False
    if isinstance(one, sympy.Tuple) or isinstance(other, sympy.Tuple):
        return all(_no_difference(a, b) for a, b in zip(left, right, strict=True))
    for member in left:
        match = next((index for index, item in enumerate(right) if _no_difference(member, item)), None)
        if match is None:
            return False
        del right[match]
    return True


def _same_value(one: Any, other: Any) -> bool:
    difference = one - other
    if difference == 0:
        return True
    symbols = sorted(one.free_symbols | other.free_symbols, key=str)
    checked = 0
    for point in _points(symbols):
        left, right = _value(one, point), _value(other, point)
        if left is None or right is None:
            continue
        scale = max(abs(left), abs(right), sympy.Integer(1) if symbols else sympy.Integer(0))
        if abs(left - right) > scale * sympy.Float(10) ** (2 - _DIGITS):
            return False
        checked += 1
    return checked >= (2 if symbols else 1)


def _proportional(one: Any, other: Any, allow_negative: bool) -> bool:
    symbols = sorted(one.free_symbols | other.free_symbols, key=str)
    ratio = None
    for point in _points(symbols):
        left, right = _value(one, point), _value(other, point)
        if left is None or right is None or right == 0:
            continue
        found = left / right
        if ratio is not None and abs(found - ratio) > abs(ratio) * sympy.Float(10) ** (2 - _DIGITS):
            return False
        ratio = found
    return ratio is not None and (allow_negative or ratio > 0)


def _points(symbols: list[Any]) -> list[dict[Any, Any]]:
    if not symbols:
        return [{}]
    generator = random.Random(20250828)  # noqa: S311 - test points, not secrets
    return [
        {symbol: sympy.Rational(generator.randrange(10_007, 40_009), 10_009) for symbol in symbols}
        for _ in range(_POINTS)
    ]


def _value(expression: Any, point: dict[Any, Any]) -> Any:
    try:
        value = expression.xreplace(point).doit().evalf(_DIGITS + 10)
    except (TypeError, ValueError, ZeroDivisionError, AttributeError, NotImplementedError):
        return None
    return value if value.is_number and value.is_finite and not value.free_symbols else None
