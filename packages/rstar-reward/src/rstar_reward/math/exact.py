r"""The fast path: integers, decimals and fractions as exact rationals, without SymPy.

Reads what most answers to integer problems are: `-12`, `1,234`, `14{,}916`, `1\,234`, `0.375`, `\frac{3}{8}`, `3/8`,
`2\frac12`, `11 5/6`. Anything else is left to the full comparison.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

__all__ = ["ExactNumber", "parse_exact", "same_number"]

# Longer literals are compared as text: the conversion is quadratic, and CPython refuses it above 4300 digits.
_MAX_DIGITS = 1500
# A decimal written out this far counts as the exact value that it correctly rounds.
_ROUNDED_DIGITS = 10


@dataclass(frozen=True)
class ExactNumber:
    """A number as it was written."""

    value: Fraction | None
    """None for literals too long to convert; `literal` then identifies the number."""
    literal: str = ""
    """Canonical digits of a plain integer or decimal, "" for a fraction."""
    decimals: int | None = None
    """Digits after the decimal point, None when it is not written as a decimal."""
    significant: int = 0
    """Significant digits of a decimal."""


_THOUSANDS = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]*)?|[0-9]{1,3}(?: [0-9]{3})+(?:\.[0-9]*)?")
_PLAIN = re.compile(r"[0-9]+(?:\.[0-9]*)?|\.[0-9]+")
_INTEGER = r"(?:\{ ?([-+]? ?[0-9]{1,1500}) ?\}|([0-9]))"
_FRAC = re.compile(rf"\\frac ?{_INTEGER} ?{_INTEGER}")
_SLASH = re.compile(r"\(? ?([-+]?[0-9]{1,1500}) ?\)? ?/ ?\(? ?([-+]?[0-9]{1,1500}) ?\)?")
_MIXED = re.compile(r"([0-9]{1,1500}) ?(\\frac .*|(?<= )[0-9]{1,1500} ?/ ?[0-9]{1,1500})")


def parse_exact(text: str) -> ExactNumber | None:
    """Reads a number from normalised text, None when it is anything but one number."""
    body = text.strip()
    while body.startswith("{") and body.endswith("}") and body.find("}") == len(body) - 1:
        body = body[1:-1].strip()
    negative = False
    if body[:1] in ("-", "+"):
        negative, body = body[0] == "-", body[1:].strip()
    number = _unsigned(body)
    if number is None or not negative:
        return number
    literal = number.literal if number.literal in ("", "0") else f"-{number.literal}"
    value = None if number.value is None else -number.value
    return ExactNumber(value, literal, number.decimals, number.significant)


def _unsigned(body: str) -> ExactNumber | None:
    if not body or body[-1] not in "0123456789.})":
        return None
    if _PLAIN.fullmatch(body):
        return _decimal(body)
    if _THOUSANDS.fullmatch(body):
        return _decimal(body.replace(",", "").replace(" ", ""))
    if (found := _FRAC.fullmatch(body)) is not None:
        above, below = found[1] or found[2], found[3] or found[4]
        return _fraction(above, below)
    if (found := _SLASH.fullmatch(body)) is not None and body.count("(") == body.count(")"):
        return _fraction(found[1], found[2])
    if (found := _MIXED.fullmatch(body)) is not None:
        rest = _unsigned(found[2].strip())
        # 4 10/3 is no mixed number.
        if rest is not None and rest.value is not None and not rest.literal and 0 < rest.value < 1:
            return ExactNumber(int(found[1]) + rest.value)
    return None


def _fraction(above: str, below: str) -> ExactNumber | None:
    denominator = int(below.replace(" ", ""))
    return ExactNumber(Fraction(int(above.replace(" ", "")), denominator)) if denominator else None


def _decimal(body: str) -> ExactNumber:
    whole, point, after = body.partition(".")
    digits = whole.lstrip("0") or "0"
    kept = after.rstrip("0")
    literal = f"{digits}.{kept}" if kept else digits
    significant = len((whole + after).lstrip("0"))
    decimals = len(after) if point and after else None
    if len(whole) + len(after) > _MAX_DIGITS:
        return ExactNumber(None, literal, decimals, significant)
    value = Fraction(int((whole + after) or "0"), 10 ** len(after))
    return ExactNumber(value, literal, decimals, significant)


def same_number(one: ExactNumber, other: ExactNumber) -> bool:
    """True when both are the same number, or one is the other correctly rounded to ten or more digits."""
    if one.value is None or other.value is None:
        return bool(one.literal) and one.literal == other.literal
    if one.value == other.value:
        return True
    return _rounds(one, other) or _rounds(other, one)


def _rounds(decimal: ExactNumber, exact: ExactNumber) -> bool:
    if decimal.value is None or exact.value is None or exact.decimals is not None or decimal.decimals is None:
        return False
    if decimal.significant < _ROUNDED_DIGITS or exact.value.denominator == 1:
        return False
    return abs(decimal.value - exact.value) * 2 <= Fraction(1, 10**decimal.decimals)
