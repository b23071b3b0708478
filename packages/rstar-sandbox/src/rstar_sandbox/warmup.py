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
    str(matrix)


def _scipy() -> None:
    from scipy import integrate, optimize, special, stats  # type: ignore[import-untyped]

    optimize.brentq(lambda x: x * x - 2, 0, 2)
    integrate.quad(lambda x: x, 0, 1)
    special.comb(5, 2)
    stats.norm.cdf(0.0)


def _sympy() -> None:
    import sympy  # type: ignore[import-untyped]

    x, y = sympy.symbols("x y")
    sympy.solve([x + y - 3, x - y - 1], [x, y])
    sympy.solve(x**2 - 5 * x + 6, x)
    str(sympy.simplify((x**2 - 1) / (x - 1)))
    sympy.integrate(x * sympy.sin(x), x)
    sympy.diff(x**3, x)
    sympy.factorint(360)


_EXERCISES: dict[str, Callable[[], None]] = {"numpy": _numpy, "scipy": _scipy, "sympy": _sympy}
