"""Tiers: which template a program's process is forked from, by what the program imports.

A process forked from an interpreter that has imported less is made faster. The choice is a guess from the source: a
program that imports more than was foreseen imports it itself, which takes longer and changes nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["FULL", "NUMPY", "STANDARD", "modules_of_tier", "tier_of_source", "tiers_for"]

STANDARD, NUMPY, FULL = "standard", "numpy", "full"


def tiers_for(warm: Sequence[str]) -> tuple[str, ...]:
    """The tiers that a service with these modules to import ahead has, the smallest first."""
    wider = any(name != "numpy" for name in warm)
    return (STANDARD, *((NUMPY,) if "numpy" in warm else ()), *((FULL,) if wider else ()))


def modules_of_tier(tier: str, warm: Sequence[str]) -> tuple[str, ...]:
    """What a tier's template imports beside the standard library."""
    if tier == FULL:
        return tuple(warm)
    return ("numpy",) if tier == NUMPY else ()


def tier_of_source(source: str, warm: Sequence[str]) -> str:
    """The smallest tier that has imported what the source names.

    Any mention of a module counts, in whatever form it is imported.
    """
    if "import" not in source:
        return STANDARD
    named = [name for name in warm if _mentions(source, name)]
    if any(name != "numpy" for name in named):
        return FULL
    return NUMPY if named else STANDARD


def _mentions(source: str, name: str) -> bool:
    return name in source and re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", source) is not None
