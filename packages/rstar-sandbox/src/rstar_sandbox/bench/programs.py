"""The programs that are measured. Each carries a nonce that its output must hold: nothing can come from a cache."""

from __future__ import annotations

import random
from dataclasses import dataclass

from rstar_protos.errors import UserInputError

__all__ = ["TIERS", "Program", "Programs"]

TIERS = ("standard", "sympy", "full")


@dataclass(frozen=True)
class Program:
    """One program and what it must print."""

    code: str
    expected: str


class Programs:
    """An endless supply, no two alike.

    Args:
        tier: "standard" needs the standard library only, "sympy" computes with SymPy, "full" with NumPy and SciPy
            too.
        seed: of the nonces.

    Raises:
        UserInputError: no such tier.
    """

    def __init__(self, tier: str, seed: int) -> None:
        if tier not in TIERS:
            raise UserInputError("--tier", tier, f"one of {', '.join(TIERS)}")
        self._tier = tier
        self._random = random.Random(seed)  # noqa: S311 - a nonce, not a secret

    def next(self) -> Program:
        """A program that was not there before."""
        nonce = f"{self._random.getrandbits(64):016x}"
        if self._tier == "standard":
            return Program(f"print(sum(range(1000)))\nprint('{nonce}')\n", f"499500\n{nonce}\n")
        low, high = sorted(self._random.sample(range(1, 1000), 2))
        if self._tier == "full":
            code = (
                "import numpy as np\n"
                "from scipy.optimize import brentq\n"
                "from sympy import factor, symbols\n"
                "x = symbols('x')\n"
                f"root = brentq(lambda t: t * t - {low * low}, 0, {high})\n"
                f"print(round(float(root)), int(np.arange({high}).sum()), factor(x**2 - {low}**2))\n"
                f"print('{nonce}')\n"
            )
            return Program(code, f"{low} {high * (high - 1) // 2} (x - {low})*(x + {low})\n{nonce}\n")
        code = (
            "from sympy import diff, expand, solve, symbols\n"
            "x = symbols('x')\n"
            f"p = expand((x - {low}) * (x - {high}))\n"
            "print(sorted(solve(p, x)), diff(p, x))\n"
            f"print('{nonce}')\n"
        )
        return Program(code, f"[{low}, {high}] 2*x - {low + high}\n{nonce}\n")
