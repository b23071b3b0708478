"""Rehearsing in the zygote what every child does: it runs a few programs, so that children start with settled code.

The interpreter writes into code it has not settled on yet: counters and specialised instructions of functions (3.11 and
later), versions of types, the cache of looked-up methods. After a fork each such write copies a page. A rehearsed
child writes, and copies, less; what programs compute stays what it is.
"""

from __future__ import annotations

import contextlib
import io
import json
import linecache
import os
import sys
from collections.abc import Sequence

from rstar_sandbox.child import report_of
from rstar_sandbox.limits import DEFAULT_LIMITS
from rstar_sandbox.messages import FRAME_HEADER, Job, pack, unpack
from rstar_sandbox.program import fresh_main, run_source

__all__ = ["rehearse"]

# More than the eight calls after which CPython 3.11 settles on specialised instructions, and their own warm-up.
_ROUNDS = 12
_NAME = "rehearsal.py"

_PLAIN = """
print(sum(range(NUMBER + 10)))
print("NUMBER")
---
import math
roots = [math.sqrt(i) for i in range(NUMBER)]
print(f"{sum(roots):.3f}", roots[-1:])
len(roots)
---
def factorial(n):
    return 1 if n < 2 else n * factorial(n - 1)
print(factorial(10), max(NUMBER, 3))
factorial(5) % 7
---
from collections import Counter, defaultdict
from itertools import combinations
sums = defaultdict(list)
for a, b in combinations(range(5), 2):
    sums[a + b].append((a, b))
print(sorted(sums.items()), Counter("abca").most_common(1))
---
from fractions import Fraction
print(Fraction(NUMBER, 6) + Fraction(1, 3))
{"a": NUMBER, "b": [1, 2.5]}
---
class Point:
    def __init__(self, x):
        self.x = x
    def __repr__(self):
        return f"P({self.x})"
point = Point(NUMBER)
while point.x > 3:
    point.x //= 2
point
---
try:
    int("xNUMBER")
except ValueError as error:
    print("no", error)
---
1 / 0
---
print((
"""

_NUMPY = """
import numpy as np
a = np.arange(NUMBER + 4.0)
print(a.sum(), (a * 2)[:3], np.linalg.norm(a), a.mean())
---
import numpy as np
m = np.array([[1, 2], [3, NUMBER]])
print(m @ m.T, np.where(m > 1, m, 0))
"""

_SYMPY = """
from sympy import *
x, y = symbols("x y")
print(solve([x + y - NUMBER, x - 2 * y], [x, y]), simplify((x**2 - NUMBER**2) / (x - NUMBER)))
---
import sympy as sp
x = sp.Symbol("x")
f = NUMBER * x**3 - 2 * x
print(sp.integrate(f, (x, 0, 1)), sp.diff(f, x).subs(x, 2), sp.factor(f), sp.solve(f, x))
---
from sympy import Eq, Rational, factorint, isprime, solve, sqrt, symbols
x = symbols("x", real=True)
print(factorint(NUMBER * 360), isprime(NUMBER + 96), Rational(NUMBER, 7) + sqrt(NUMBER * 4), solve(Eq(x**2, NUMBER)))
---
from sympy import Matrix, Rational
m = Matrix([[2, NUMBER], [1, 3]])
print(m.det(), m.inv(), (m * m).T, Rational(1, NUMBER).evalf())
"""

_PROGRAMS = {"numpy": _NUMPY, "sympy": _SYMPY}


def rehearse(warmed: Sequence[str]) -> None:
    """Runs representative programs several times, as a child does, and throws their output away.

    Args:
        warmed: modules that are imported already; programs that need others are left out.
    """
    texts = [_PLAIN, *(_PROGRAMS[name] for name in warmed if name in _PROGRAMS)]
    programs = [program for text in texts for program in text.split("---\n")]
    before, out, err = sys.modules["__main__"], sys.stdout, sys.stderr
    with open(os.devnull, "wb", buffering=0) as nowhere:
        # Of the types that a child's streams have.
        sys.stdout = io.TextIOWrapper(io.FileIO(nowhere.fileno(), "w", closefd=False), "utf-8", write_through=True)
        sys.stderr = sys.stdout
        try:
            for number in range(_ROUNDS):
                for source in programs:
                    _run(source.replace("NUMBER", str(number + 2)))
        finally:
            sys.stdout, sys.stderr, sys.modules["__main__"] = out, err, before
            linecache.cache.pop(_NAME, None)


def _run(source: str) -> None:
    with contextlib.suppress(Exception):  # a rehearsal that goes wrong has warmed something all the same
        job = Job.from_frame(unpack(pack(Job(source, b"", DEFAULT_LIMITS).frame())[FRAME_HEADER.size :]))
        json.loads(report_of(run_source(job.code, _NAME, fresh_main().__dict__)))
