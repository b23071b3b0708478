"""Which template a program is forked from."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar_sandbox.tiers import FULL, NUMPY, STANDARD, SYMPY, modules_of_tier, tier_of_source, tiers_for

WARM = ("numpy", "scipy", "sympy")


@pytest.mark.parametrize(
    ("source", "tier"),
    [
        ("print(1)", STANDARD),
        ("import math, os", STANDARD),
        ("import numpy as np", NUMPY),
        ("from numpy.linalg import inv", NUMPY),
        ("import sympy", SYMPY),
        ("from sympy import *\nsolve(symbols('x') - 1)", SYMPY),
        ("import sympy\nimport numpy", FULL),
        ("import sympy as sp\nf = sp.lambdify(x, x**2)", FULL),
        ("import numpy\nfrom scipy import stats", FULL),
        ("__import__('sympy')", SYMPY),
        ("import numpy_financial", STANDARD),
        ("numpy = 5; print(numpy)", STANDARD),
    ],
)
def test_a_tier_has_what_the_source_imports(source: str, tier: str) -> None:
    assert tier_of_source(source, WARM) == tier


@given(st.text(), st.sets(st.sampled_from(WARM)))
def test_any_source_has_a_tier_that_is_there(source: str, warm: set[str]) -> None:
    modules = tuple(sorted(warm))
    assert tier_of_source("import " + source, modules) in tiers_for(modules)


def test_a_service_that_warms_nothing_has_one_tier() -> None:
    assert tiers_for(()) == (STANDARD,)
    assert tier_of_source("import sympy", ()) == STANDARD


def test_tiers_grow() -> None:
    assert [len(modules_of_tier(tier, WARM)) for tier in tiers_for(WARM)] == [0, 1, 1, 3]


def test_one_module_needs_no_full_tier() -> None:
    assert tiers_for(("sympy",)) == (STANDARD, SYMPY)
    assert tiers_for(("scipy",)) == (STANDARD, FULL)
    assert tier_of_source("from sympy import lambdify", ("sympy",)) == SYMPY
