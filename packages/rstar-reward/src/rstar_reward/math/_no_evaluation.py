"""Keeps answers away from Python's evaluation inside SymPy and latex2sympy. Runs in worker processes only.

latex2sympy turns the numbers that it reads into SymPy ones by way of text, and hands the arguments of functions it
does not know to SymPy as text; SymPy's `sympify` then evaluates such text as Python. Here numbers are made without
that detour, and evaluation is taken out of SymPy's parser altogether: whatever still leads there cannot be read.
"""

from __future__ import annotations

from typing import Any, NoReturn

import sympy  # type: ignore[import-untyped]
from latex2sympy2_extended import latex2sympy2  # type: ignore[import-untyped]
from sympy.parsing import sympy_parser  # type: ignore[import-untyped]

__all__ = ["forbid_evaluation", "number"]


def number(text: str) -> Any:
    """The SymPy number of a literal: digits, with or without a point, sign or exponent.

    Raises:
        ValueError: it is no such literal.
    """
    plain = text.replace(",", "").replace(" ", "")
    if plain.removeprefix("-").isdecimal():
        return sympy.Integer(int(plain))
    float(plain)  # refuses what is no literal
    return sympy.Float(plain)


def _refused(*arguments: object, **options: object) -> NoReturn:
    # What SymPy's sympify takes for "this is no expression".
    raise SyntaxError("text is never evaluated here")


def forbid_evaluation() -> None:
    """Takes evaluation of text out of SymPy in this process, for good."""
    sympy_parser.parse_expr = _refused
    sympy_parser.eval_expr = _refused
    # Texts that are nothing but a number come here, European decimals among them: 0,125.
    latex2sympy2.convert_number = lambda text: number(text.replace(",", ".") if text.startswith("0,") else text)
    latex2sympy2._Latex2Sympy.parse_number = lambda self, text: number(text)
