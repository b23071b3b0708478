r"""Generated pairs of reference and response, all distinct, half of them right, the same for the same seed.

`integers`: what reinforcement learning on integer answers sends, a long response that ends in one number. `hard`: short
responses with answers of every form, of which each is spelt otherwise than its reference, or slightly changed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import comb

from rstar_protos.errors import UserInputError

__all__ = ["WORKLOADS", "Pair", "pairs_of"]

_LONG_RESPONSE = 24_000


@dataclass(frozen=True)
class Pair:
    """A reference answer, a response, and whether the response is right."""

    gold: str
    response: str
    right: bool


def pairs_of(workload: str, count: int, seed: int) -> list[Pair]:
    """Distinct pairs.

    Raises:
        UserInputError: unknown workload.
    """
    if workload not in WORKLOADS:
        raise UserInputError("workload", workload, f"one of {', '.join(WORKLOADS)}")
    chance = random.Random(f"{workload}/{seed}")  # noqa: S311 - test data, not secrets
    found: dict[tuple[str, str], Pair] = {}
    make = WORKLOADS[workload]
    while len(found) < count:
        pair = make(chance, len(found) % 2 == 0)
        found.setdefault((pair.gold, pair.response), pair)
    return list(found.values())


def _integer(chance: random.Random, right: bool) -> Pair:
    gold = chance.randrange(0, 100_000)
    answer = gold if right else gold + chance.choice((-10, -2, -1, 1, 2, 9, 100))
    return Pair(str(gold), f"<reason>{''.join(_steps(chance))}</reason>\n<answer>\\boxed{{{answer}}}</answer>", right)


def _steps(chance: random.Random) -> Iterator[str]:
    forms = (
        "Let $a_{0} = {1}$; then the next term is $\\frac{{{1}}}{{{0}}}$, which we keep for later. ",
        "We check ${1} \\equiv {2} \\pmod{{{0}}}$ and go on.\n",
        "If the side is {1}, the area grows to $({0} + {1})^2 = {2}$, too much. ",
        "So far there are {2} ways, and {0} of them were counted twice.\n\n",
    )
    length = 0
    while length < _LONG_RESPONSE:
        step = chance.choice(forms).format(chance.randrange(2, 60), chance.randrange(100), chance.randrange(9999))
        length += len(step)
        yield step


def _hard(chance: random.Random, right: bool) -> Pair:
    gold, same, other = chance.choice(_FORMS)(chance)
    answer = same if right else other
    lead = (
        f"<reason>With {chance.randrange(10**6)} in mind we simplify, substitute back and compare both sides.</reason>"
    )
    return Pair(gold, f"{lead}\n<answer>\\boxed{{{answer}}}</answer>", right)


Form = tuple[str, str, str]


def _fraction(chance: random.Random) -> Form:
    above, below, factor = chance.randrange(1, 60), chance.randrange(2, 60), chance.randrange(2, 9)
    return rf"\frac{{{above}}}{{{below}}}", rf"\dfrac{{{above * factor}}}{{{below * factor}}}", f"{above + 1}/{below}"


def _radical(chance: random.Random) -> Form:
    outer, inner = chance.randrange(2, 20), chance.choice((2, 3, 5, 6, 7, 10, 11))
    return rf"{outer}\sqrt{{{inner}}}", rf"\sqrt{{{outer * outer * inner}}}", rf"\sqrt{{{outer * outer * inner + 1}}}"


def _rationalised(chance: random.Random) -> Form:
    above, below = chance.randrange(1, 40), chance.choice((2, 3, 5, 7))
    return rf"\frac{{{above}}}{{\sqrt{{{below}}}}}", rf"\frac{{{above}\sqrt{{{below}}}}}{{{below}}}", f"{above}"


def _polynomial(chance: random.Random) -> Form:
    one, other = chance.randrange(1, 30), chance.randrange(1, 30)
    total, product = one + other, one * other
    return f"(x+{one})(x+{other})", f"x^2 + {total}x + {product}", f"x^2 + {total}x + {product + 1}"


def _trigonometric(chance: random.Random) -> Form:
    factor = chance.randrange(2, 50)
    return rf"{factor}\sin(2x)", rf"{2 * factor}\sin x\cos x", rf"{factor}\sin x\cos x"


def _set(chance: random.Random) -> Form:
    values = chance.sample(range(-40, 40), 4)
    listed = ", ".join(map(str, values[::-1]))
    return rf"\{{{', '.join(map(str, values))}\}}", rf"\{{{listed}\}}", rf"\{{{listed}, 41\}}"


def _interval(chance: random.Random) -> Form:
    low, high = chance.randrange(-30, 0), chance.randrange(1, 30)
    return f"[{low}, {high})", rf"{low} \leq x < {high}", f"[{low}, {high}]"


def _tuple(chance: random.Random) -> Form:
    one, other = chance.randrange(1, 50), chance.randrange(-30, 30)
    return rf"\left(\frac{{{one}}}{{2}}, {other}\right)", f"({one / 2}, {other})", f"({other}, {one / 2})"


def _matrix(chance: random.Random) -> Form:
    a, b, c, d = (chance.randrange(-9, 10) for _ in range(4))
    rows = rf"{a} & {b} \\ {c} & {d}"
    return (
        rf"\begin{{pmatrix}} {rows} \end{{pmatrix}}",
        rf"\begin{{bmatrix}}{rows}\end{{bmatrix}}",
        rf"\begin{{pmatrix}} {rows}1 \end{{pmatrix}}",
    )


def _line(chance: random.Random) -> Form:
    slope, start = chance.randrange(2, 20), chance.randrange(1, 40)
    return f"y = {slope}x + {start}", f"{slope}x - y + {start} = 0", f"y = {slope}x - {start}"


def _multiple_of_pi(chance: random.Random) -> Form:
    above, below = chance.randrange(1, 40), chance.randrange(2, 13)
    return rf"\frac{{{above}\pi}}{{{below}}}", rf"{above}\pi/{below}", f"{above * 3.14159 / below:.4f}"


def _complex(chance: random.Random) -> Form:
    real, imaginary = chance.randrange(1, 50), chance.randrange(2, 50)
    return f"{real} - {imaginary}i", f"-{imaginary}i + {real}", f"{real} + {imaginary}i"


def _measure(chance: random.Random) -> Form:
    metres = chance.randrange(2, 500)
    return rf"{metres}\text{{ m}}", rf"{metres * 100}\text{{ cm}}", rf"{metres}\text{{ cm}}"


def _percent(chance: random.Random) -> Form:
    share = chance.randrange(1, 100)
    return rf"{share}\%", rf"\frac{{{share}}}{{100}}", rf"{share / 10}\%"


def _binomial(chance: random.Random) -> Form:
    total, part = chance.randrange(5, 25), chance.randrange(2, 5)
    return rf"\binom{{{total}}}{{{part}}}", str(comb(total, part)), str(comb(total, part) + 1)


def _logarithm(chance: random.Random) -> Form:
    base, power = chance.randrange(2, 30), chance.randrange(2, 9)
    return rf"\ln {base**power}", rf"{power}\ln {base}", rf"{power}\ln {base + 1}"


def _power(chance: random.Random) -> Form:
    base, exponent = chance.randrange(2, 12), chance.randrange(20, 90)
    return f"{base}^{{{exponent}}}", str(base**exponent), f"{base}^{{{exponent}}}+1"


def _sum(chance: random.Random) -> Form:
    last = chance.randrange(5, 60)
    return rf"\sum_{{k=1}}^{{{last}}} k^2", str(last * (last + 1) * (2 * last + 1) // 6), str(last**3)


_FORMS: tuple[Callable[[random.Random], Form], ...] = (
    _fraction, _radical, _rationalised, _polynomial, _trigonometric, _set, _interval, _tuple, _matrix, _line,
    _multiple_of_pi, _complex, _measure, _percent, _binomial, _logarithm, _power, _sum,
)  # fmt: skip

WORKLOADS: dict[str, Callable[[random.Random, bool], Pair]] = {"integers": _integer, "hard": _hard}
