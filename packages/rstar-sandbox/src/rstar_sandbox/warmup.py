"""Warming the zygote: import what programs use, and run a little of it, so that no call pays for it.

Nothing here may start a thread: the zygote forks.
"""

from __future__ import annotations

import contextlib
import importlib
import threading
from collections.abc import Callable, Sequence

__all__ = ["STANDARD_MODULES", "WARM_ENVIRONMENT", "warm_up"]

WARM_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
}
"""A pool of BLAS threads would not survive the fork and would deadlock the child."""

STANDARD_MODULES = (
    "abc", "array", "bisect", "calendar", "cmath", "collections", "copy", "csv", "dataclasses", "datetime", "decimal",
    "enum", "fractions", "functools", "hashlib", "heapq", "inspect", "io", "itertools", "json", "math", "operator",
    "os", "pathlib", "pprint", "random", "re", "statistics", "string", "struct", "subprocess", "sys", "tempfile",
    "textwrap", "time", "traceback", "types", "typing", "warnings",
)  # fmt: skip


def warm_up(scientific: Sequence[str]) -> list[str]:
    """Imports the standard modules and those of `scientific` that are installed, and exercises them.

    Returns:
        The names of the scientific modules that are warm.
    """
    for name in STANDARD_MODULES:
        importlib.import_module(name)
    warmed = []
    for name in scientific:
        with contextlib.suppress(Exception):  # not installed, or broken: programs that import it will see it
            importlib.import_module(name)
            _EXERCISES.get(name, _nothing)()
            warmed.append(name)
    if threading.active_count() != 1:
        raise RuntimeError("warming up started a thread; the zygote cannot fork safely")
    return warmed


def _nothing() -> None:
    pass


def _numpy() -> None:
    import numpy as np

    matrix = np.arange(9.0).reshape(3, 3) + np.eye(3)
    np.linalg.solve(matrix, np.ones(3))
    np.linalg.eigvals(matrix)
    np.linalg.det(matrix @ matrix.T)
    np.polyfit(np.arange(5.0), np.arange(5.0) ** 2, 2)
    np.sort(np.unique(np.arange(6) % 3))
    np.random.default_rng(0).normal(size=3)
    np.fft.fft(np.ones(4))
    str(matrix)


def _scipy() -> None:
    from scipy import integrate, linalg, optimize, special, stats  # type: ignore[import-untyped]

    optimize.brentq(lambda x: x * x - 2, 0, 2)
    optimize.minimize(lambda x: (x[0] - 1) ** 2, [0.0])
    optimize.fsolve(lambda x: x * x - 2, 1.0)
    integrate.quad(lambda x: x, 0, 1)
    integrate.solve_ivp(lambda t, y: -y, (0, 1), [1.0])
    linalg.expm([[0.0, 1.0], [0.0, 0.0]])
    special.comb(5, 2, exact=True)
    stats.norm.cdf(0.0)


def _sympy() -> None:
    """What answers to mathematical problems use: equations, calculus, number theory, matrices, exact arithmetic.

    The first use of each part fills caches and runs imports that SymPy puts off; children then share them.
    """
    import sympy as sp  # type: ignore[import-untyped]

    x, y, n = sp.Symbol("x"), sp.Symbol("y", positive=True), sp.Symbol("n", integer=True)
    sp.solve([x + y - 3, x - y - 1], [x, y])
    sp.solve(x**2 - 5 * x + 6, x)
    sp.solve(sp.Eq(2**x, 8), x)
    sp.solveset(x**3 - x, x, sp.S.Reals)
    sp.solve_univariate_inequality(x**2 < 4, x)
    sp.nsolve(sp.cos(x) - x, 1)
    str(sp.simplify((x**2 - 1) / (x - 1) + sp.sin(x) ** 2 + sp.cos(x) ** 2))
    str(sp.factor(sp.expand((x + 1) ** 3 * (x - 2))))
    str(sp.apart(1 / (x**2 - 1)))
    sp.sqrtdenest(sp.sqrt(5 + 2 * sp.sqrt(6)))
    sp.integrate(x * sp.sin(x), x)
    sp.integrate(1 / (1 + x**2), (x, 0, 1))
    sp.diff(x**3 * sp.exp(x), x)
    sp.limit(sp.sin(x) / x, x, 0)
    sp.series(sp.exp(x), x, 0, 4)
    sp.summation(n**2, (n, 1, 10))
    sp.Sum(1 / n**2, (n, 1, sp.oo)).doit()
    sp.Matrix([[2, 1], [1, 3]]).inv()
    sp.Matrix([[2, 1], [1, 3]]).eigenvals()
    sp.Poly(x**4 - 1, x).all_roots()
    sp.factorint(360)
    sp.divisors(28)
    sp.isprime(2**31 - 1)
    sp.totient(36)
    sp.binomial(10, 3)
    sp.Rational(1, 3).evalf(30)
    sp.N(sp.pi, 20)
    sp.latex(sp.sqrt(x) / y)
    sp.lambdify(x, x**2, "math")(3)
    sp.sympify("2*x + 1").subs(x, 3)


_EXERCISES: dict[str, Callable[[], None]] = {"numpy": _numpy, "scipy": _scipy, "sympy": _sympy}
