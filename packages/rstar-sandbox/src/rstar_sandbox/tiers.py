"""Tiers: which template a program's process is forked from, by what the program imports.

A process forked from an interpreter that has imported less is made faster: the kernel copies the tables of all its
memory, and SciPy alone maps hundreds of libraries. The choice is a guess from the source: a program that imports more
than was foreseen imports it itself, which takes longer and changes nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["FULL", "NUMPY", "STANDARD", "SYMPY", "modules_of_tier", "tier_of_source", "tiers_for"]

STANDARD, NUMPY, SYMPY, FULL = "standard", "numpy", "sympy", "full"

_NARROW = {NUMPY: "numpy", SYMPY: "sympy"}
"""Tiers with one module of those that can be had."""
_BEYOND_SYMPY = ("lambdify", "plot", "sample")
"""What of SymPy imports NumPy or SciPy by itself."""


def tiers_for(warm: Sequence[str]) -> tuple[str, ...]:
    """The tiers that a service with these modules to import ahead has, the smallest first."""
    narrow = [tier for tier, module in _NARROW.items() if module in warm]
    is_all = not warm or (len(warm) == 1 and narrow)
    return (STANDARD, *narrow, *(() if is_all else (FULL,)))


def modules_of_tier(tier: str, warm: Sequence[str]) -> tuple[str, ...]:
    """What a tier's template imports beside the standard library."""
    if tier == FULL:
        return tuple(warm)
    return (_NARROW[tier],) if tier in _NARROW else ()


def tier_of_source(source: str, warm: Sequence[str]) -> str:
    """The smallest tier that has imported what the source names.

    Any mention of a module counts, in whatever form it is imported.
    """
    if "import" not in source:
        return STANDARD
    named = [name for name in warm if _mentions(source, name)]
    if not named:
        return STANDARD
    fitting = [tier for tier, module in _NARROW.items() if named == [module]]
    if not fitting or (len(warm) > 1 and fitting == [SYMPY] and any(word in source for word in _BEYOND_SYMPY)):
        return FULL
    return fitting[0]


def _mentions(source: str, name: str) -> bool:
    return name in source and re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", source) is not None
