"""The built-in families, from one stated operation to problems for which a program has to be composed.

Operands are large enough that a small model cannot work the answer out in its head, so running code pays; texts are one
line, because every prompt token is paid for in each rollout and each training step.
"""

from __future__ import annotations

import math
import random

from rstar_protos.errors import UserInputError
from rstar_trainer.problems.family import Family

__all__ = ["FAMILIES", "family_named"]


def _two_terms(rng: random.Random) -> dict[str, int]:
    return {"a": rng.randint(10_000, 99_999), "b": rng.randint(10_000, 99_999)}


def _factors(rng: random.Random) -> dict[str, int]:
    return {"a": rng.randint(120, 999), "b": rng.randint(120, 999)}


def _boxes(rng: random.Random) -> dict[str, int]:
    return {"a": rng.randint(23, 199), "b": rng.randint(23, 199), "c": rng.randint(101, 999)}


def _spending(rng: random.Random) -> dict[str, int]:
    b, c = rng.randint(13, 89), rng.randint(13, 89)
    return {"a": b * c + rng.randint(111, 2_999), "b": b, "c": c}


def _packing(rng: random.Random) -> dict[str, int]:
    b = rng.randint(37, 99)
    return {"a": b * rng.randint(31, 99) + rng.randint(11, b - 1), "b": b}


def _range_multiples(rng: random.Random) -> dict[str, int]:
    return {"k": rng.randint(3, 19), "n": rng.randint(200, 999)}


def _long_number(rng: random.Random) -> dict[str, int]:
    return {"n": rng.randint(10**10, 10**15)}


def _range_condition(rng: random.Random) -> dict[str, int]:
    a = rng.choice((3, 4, 6, 7, 8, 9))
    return {"n": rng.randint(300, 2_999), "a": a, "b": rng.choice([b for b in (5, 10, 11, 13) if b != a])}


def _power(rng: random.Random) -> dict[str, int]:
    return {"a": rng.randint(3, 29), "b": rng.randint(13, 79), "m": rng.randint(101, 997)}


def _tickets(rng: random.Random) -> dict[str, int]:
    return {
        "a": rng.randint(101, 499),
        "b": rng.randint(12, 49),
        "c": rng.randint(101, 499),
        "d": rng.randint(12, 49),
    }


FAMILIES: tuple[Family, ...] = (
    Family(
        name="sum",
        level=1,
        wordings=(
            "What is {a} + {b}?",
            "Add {a} and {b}.",
            "Find the sum of {a} and {b}.",
            "Compute {a} plus {b}.",
        ),
        sample=_two_terms,
        solve=lambda p: p["a"] + p["b"],
        codes=(
            "print({a} + {b})",
            "a = {a}\nb = {b}\nprint(a + b)",
            "total = {a} + {b}\nprint(total)",
            "{a} + {b}",
        ),
    ),
    Family(
        name="product",
        level=1,
        wordings=(
            "What is {a} * {b}?",
            "Multiply {a} by {b}.",
            "Find the product of {a} and {b}.",
            "Compute {a} times {b}.",
        ),
        sample=_factors,
        solve=lambda p: p["a"] * p["b"],
        codes=(
            "print({a} * {b})",
            "a = {a}\nb = {b}\nprint(a * b)",
            "result = {a} * {b}\nprint(result)",
            "{a} * {b}",
        ),
    ),
    Family(
        name="boxes",
        level=2,
        wordings=(
            "{name} has {a} boxes of {b} {thing} each and {c} loose {thing}. How many {thing} is that?",
            "A shop gets {a} crates with {b} {thing} in each, and {c} more {thing}. How many {thing} in all?",
            "There are {a} bags holding {b} {thing} each. {name} adds {c} {thing}. How many {thing} are there?",
            "{name} fills {a} shelves with {b} {thing} each and keeps {c} {thing} apart. Total number of {thing}?",
        ),
        sample=_boxes,
        solve=lambda p: p["a"] * p["b"] + p["c"],
        codes=(
            "print({a} * {b} + {c})",
            "total = {a} * {b}\ntotal += {c}\nprint(total)",
            "packed = {a} * {b}\nprint(packed + {c})",
            "{a} * {b} + {c}",
        ),
    ),
    Family(
        name="spending",
        level=2,
        wordings=(
            "{name} has {a} dollars and buys {b} tickets for {c} dollars each. How many dollars are left?",
            "From {a} {thing}, {name} gives {b} {thing} to each of {c} friends. How many {thing} remain?",
            "A tank holds {a} litres. Each of {b} days, {c} litres are used. How many litres are left?",
            "{name} owns {a} {thing} and sells {b} packs of {c} {thing}. How many {thing} does {name} keep?",
        ),
        sample=_spending,
        solve=lambda p: p["a"] - p["b"] * p["c"],
        codes=(
            "print({a} - {b} * {c})",
            "left = {a}\nleft -= {b} * {c}\nprint(left)",
            "used = {b} * {c}\nprint({a} - used)",
            "{a} - {b} * {c}",
        ),
    ),
    Family(
        name="leftover",
        level=2,
        wordings=(
            "{name} packs {a} {thing} into bags of {b}. How many {thing} are left over?",
            "{a} {thing} are put in rows of {b}. How many {thing} do not fit in a full row?",
            "What is the remainder when {a} is divided by {b}?",
            "{name} shares {a} {thing} equally among {b} people. How many {thing} remain?",
            "Boxes take {b} {thing}. After filling as many as possible from {a} {thing}, how many are unpacked?",
        ),
        sample=_packing,
        solve=lambda p: p["a"] - p["b"] * (p["a"] // p["b"]),
        codes=(
            "print({a} % {b})",
            "a = {a}\nb = {b}\nprint(a % b)",
            "left = {a} % {b}\nprint(left)",
            "{a} % {b}",
        ),
        unseen_wordings=frozenset({4}),
    ),
    Family(
        name="multiples",
        level=3,
        wordings=(
            "What is the sum of all multiples of {k} from 1 to {n}?",
            "Add up every number from 1 to {n} that {k} divides.",
            "Find the sum of the integers from 1 to {n} that are divisible by {k}.",
            "Sum the multiples of {k} that are at most {n}.",
        ),
        sample=_range_multiples,
        solve=lambda p: p["k"] * (p["n"] // p["k"]) * (p["n"] // p["k"] + 1) // 2,
        codes=(
            "print(sum(i for i in range(1, {n} + 1) if i % {k} == 0))",
            "total = 0\nfor i in range(1, {n} + 1):\n    if i % {k} == 0:\n        total += i\nprint(total)",
            "print(sum(range({k}, {n} + 1, {k})))",
            "sum(i for i in range({n} + 1) if i % {k} == 0)",
        ),
    ),
    Family(
        name="digits",
        level=3,
        wordings=(
            "What is the sum of the digits of {n}?",
            "Add the digits of {n}.",
            "Find the digit sum of {n}.",
            "Sum all digits in the number {n}.",
        ),
        sample=_long_number,
        solve=lambda p: sum(p["n"] // 10**i % 10 for i in range(16)),
        codes=(
            "print(sum(int(d) for d in str({n})))",
            "total = 0\nfor d in '{n}':\n    total += int(d)\nprint(total)",
            "print(sum(map(int, '{n}')))",
            "sum(int(d) for d in str({n}))",
        ),
    ),
    Family(
        name="counting",
        level=3,
        wordings=(
            "How many integers from 1 to {n} are divisible by {a} but not by {b}?",
            "Count the numbers from 1 to {n} that are multiples of {a} and not multiples of {b}.",
            "From 1 to {n}, how many numbers can be divided by {a} but not by {b}?",
            "How many multiples of {a} up to {n} are not multiples of {b}?",
        ),
        sample=_range_condition,
        solve=lambda p: p["n"] // p["a"] - p["n"] // math.lcm(p["a"], p["b"]),
        codes=(
            "print(sum(1 for i in range(1, {n} + 1) if i % {a} == 0 and i % {b} != 0))",
            "c = 0\nfor i in range(1, {n} + 1):\n    if i % {a} == 0 and i % {b} != 0:\n        c += 1\nprint(c)",
            "print(len([i for i in range(1, {n} + 1) if i % {a} == 0 and i % {b}]))",
            "sum(i % {a} == 0 and i % {b} != 0 for i in range(1, {n} + 1))",
        ),
    ),
    Family(
        name="power",
        level=3,
        wordings=(
            "What is the remainder when {a}^{b} is divided by {m}?",
            "Find {a} to the power {b} modulo {m}.",
            "Divide {a}^{b} by {m}. What is the remainder?",
            "Compute {a}^{b} mod {m}.",
        ),
        sample=_power,
        solve=lambda p: _modular_power(p["a"], p["b"], p["m"]),
        codes=(
            "print({a} ** {b} % {m})",
            "print(pow({a}, {b}, {m}))",
            "x = {a} ** {b}\nprint(x % {m})",
            "{a} ** {b} % {m}",
        ),
    ),
    Family(
        name="tickets",
        level=2,
        wordings=(
            "{a} adults pay {b} dollars each and {c} children pay {d} dollars each. How many dollars in all?",
            "{name} sells {a} {thing} for {b} dollars each and {c} cups for {d} dollars each. Total dollars?",
            "One hall has {a} rows of {b} seats, another {c} rows of {d} seats. How many seats together?",
        ),
        sample=_tickets,
        solve=lambda p: p["a"] * p["b"] + p["c"] * p["d"],
        codes=("print({a} * {b} + {c} * {d})", "{a} * {b} + {c} * {d}"),
        unseen=True,
    ),
)


def _modular_power(base: int, exponent: int, modulus: int) -> int:
    """Square and multiply, so that the answer is computed another way than by the code templates."""
    result = 1
    while exponent:
        if exponent & 1:
            result = result * base % modulus
        base = base * base % modulus
        exponent >>= 1
    return result


_BY_NAME = {family.name: family for family in FAMILIES}


def family_named(name: str) -> Family:
    """The family of that name.

    Raises:
        UserInputError: there is none.
    """
    if name not in _BY_NAME:
        raise UserInputError("family", name, "one of " + ", ".join(_BY_NAME))
    return _BY_NAME[name]
