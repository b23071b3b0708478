r"""Static limits, checked before anything is parsed: what could blow up is refused by its looks.

A refusal costs the policy its reward and nothing else; honest answers stay far below the limits.
"""

from __future__ import annotations

import re

__all__ = ["too_complex"]

_MAX_LENGTH = 4000
_MAX_DEPTH = 40
_MAX_TOKENS = 1500
_MAX_TOWER = 2
_MAX_EXPONENT_DIGITS = 5
_MAX_FACTORIAL_DIGITS = 3
_MAX_LARGE_OPERATORS = 4

_TOKEN = re.compile(r"\\[a-zA-Z]+|[a-zA-Z]+|[0-9]+(?:\.[0-9]*)?|\\.|\S")
_LARGE = re.compile(r"\\(?:sum|prod|int|iint|iiint|oint|lim|bigcup|bigcap)(?![a-zA-Z])")
_BIG_NUMBER = re.compile(r"[0-9]{6,}|10 ?\^ ?\{? ?[0-9]")
_FACTORIAL = re.compile(r"([0-9]+|[)}\]])\s*!")
_BINOMIAL = re.compile(r"\\binom")


def too_complex(text: str) -> str | None:
    """Why a normalised answer is refused, None when it may be parsed."""
    if len(text) > _MAX_LENGTH:
        return f"the answer is longer than {_MAX_LENGTH} characters"
    tokens = _TOKEN.findall(text)
    if len(tokens) > _MAX_TOKENS:
        return f"the answer has more than {_MAX_TOKENS} symbols"
    depth = deepest = 0
    for symbol in tokens:
        if symbol in ("{", "(", "[", r"\{"):
            depth += 1
            deepest = max(deepest, depth)
        elif symbol in ("}", ")", "]", r"\}"):
            depth -= 1
    if deepest > _MAX_DEPTH:
        return f"the answer is nested more than {_MAX_DEPTH} deep"
    return _powers(tokens) or _factorials(text) or _large_operators(text)


def _powers(tokens: list[str]) -> str | None:
    """Refuses towers of powers and exponents with many digits."""
    # Height of the tower that is open at each brace level.
    heights = [0]
    pending = False
    previous = ""
    for symbol in tokens:
        if symbol == "^":
            pending = True
            if heights[-1] + 1 > _MAX_TOWER:
                return f"powers are stacked more than {_MAX_TOWER} high"
        elif symbol in ("{", "(", "["):
            heights.append(heights[-1] + (1 if pending else 0))
            pending = False
        elif symbol in ("}", ")", "]"):
            if len(heights) > 1:
                heights.pop()
        else:
            inside_exponent = pending or heights[-1] > 0
            if inside_exponent and symbol[0].isdigit() and len(symbol.partition(".")[0]) > _MAX_EXPONENT_DIGITS:
                return f"an exponent has more than {_MAX_EXPONENT_DIGITS} digits"
            if pending and previous == "^" and heights[-1] + 1 > _MAX_TOWER:
                return f"powers are stacked more than {_MAX_TOWER} high"
            pending = False
        previous = symbol
    # 9^9^9 without braces.
    chain = re.search(r"(?:\^\s*\{?\(?\s*-?\w+\s*){3,}", " ".join(tokens))
    return f"powers are stacked more than {_MAX_TOWER} high" if chain else None


def _factorials(text: str) -> str | None:
    for found in _FACTORIAL.finditer(text):
        digits = found[1] if found[1].isdigit() else ""
        large = len(digits) > _MAX_FACTORIAL_DIGITS or (not digits and _BIG_NUMBER.search(text) is not None)
        if large or text.startswith("!", found.end()):
            return "a factorial of a large number"
    if _BINOMIAL.search(text) and _BIG_NUMBER.search(text):
        return "a binomial coefficient of large numbers"
    return None


def _large_operators(text: str) -> str | None:
    operators = _LARGE.findall(text)
    if len(operators) > _MAX_LARGE_OPERATORS:
        return f"more than {_MAX_LARGE_OPERATORS} sums, products, integrals or limits"
    if operators and _BIG_NUMBER.search(text):
        return "a sum, product or integral over a large range"
    return None
