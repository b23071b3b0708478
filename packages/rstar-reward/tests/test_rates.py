"""Three rates over the answers of MATH-500 and HMMT February 2025; `pytest -s` prints them.

Verified against themselves, against other spellings, and against slightly changed values.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest

from rstar_reward import check_golds, verify_many

pytestmark = pytest.mark.shared_data

_FRACTION = re.compile(r"(-?)\\frac\{(\d+)\}\{(\d+)\}")
_INTEGER = re.compile(r"-?\d+")
_GLUED = re.compile(r"\\[a-zA-Z]+ [a-zA-Z]")


def answers(shared: Path) -> list[str]:
    lines = [
        line
        for name in ("math500.jsonl", "hmmt25_feb.jsonl")
        for line in (shared / "data" / name).read_text("utf-8").split("\n")
        if line
    ]
    return [json.loads(line)["answer"] for line in lines]


def respelt(answer: str) -> Iterator[str]:
    """The same answer in other spellings."""
    words = "\\text" in answer
    yield f" {answer} "
    yield answer.replace(r"\frac", r"\dfrac")
    yield answer.replace(r"\frac", r"\tfrac")
    yield re.sub(r"\\frac\{(\d)\}\{(\d)\}", r"\\frac\1\2", answer)
    if not words:
        yield re.sub(r"([-+=,])", r" \1 ", answer)
        yield answer.replace(",", r",\ ") if "\\!" not in answer and "{,}" not in answer else answer
        if not _GLUED.search(answer):
            yield answer.replace(" ", "")
    if "\\left" in answer:
        yield answer.replace("\\left", "").replace("\\right", "")
    elif answer.count("(") == answer.count(")") and not re.search(r"[][]|\\[bB]ig", answer):
        yield answer.replace("(", "\\left(").replace(")", "\\right)")
    if fraction := _FRACTION.fullmatch(answer):
        sign, above, below = fraction[1], int(fraction[2]), int(fraction[3])
        yield f"{sign}{above}/{below}"
        yield rf"{sign}\frac{{{7 * above}}}{{{7 * below}}}"
        # A decimal exactly when nothing but 2 and 5 divides the denominator.
        if 10**12 % Fraction(above, below).denominator == 0:
            yield f"{sign}{above / below!r}"
    if _INTEGER.fullmatch(answer):
        yield f"{answer}.0"
        yield f"{int(answer):,}"


def changed(answer: str) -> Iterator[str]:
    """Other values that look much the same."""
    yield f"{answer} + 10^{{-9}}"
    for found in list(re.finditer(r"\d+", answer))[:3]:
        yield f"{answer[: found.start()]}{int(found[0]) + 1}{answer[found.end() :]}"
    if _INTEGER.fullmatch(answer) and int(answer):
        yield f"{answer}0"
        yield str(-int(answer))
        yield f"{answer}.5"
        yield f"{answer}.000000001"
    if not re.search(r"\d", answer):
        letters = re.sub(r"\\text(?:bf)?\{([^{}]*)\}", r"\1", answer)
        yield f"{answer}+1" if letters == answer else rf"\text{{not }} {answer}"


def rate(pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The pairs that are paid."""
    verdicts = verify_many((gold, f"<answer>\\boxed{{{answer}}}</answer>") for gold, answer in pairs)
    return [pair for pair, verdict in zip(pairs, verdicts, strict=True) if verdict.reward == 1]


def test_all_answers_are_usable_references(shared: Path) -> None:
    assert check_golds(answers(shared)) == {}


def test_answers_verify_against_themselves(shared: Path) -> None:
    pairs = [(answer, answer) for answer in answers(shared)]
    paid = rate(pairs)
    print(f"themselves: {len(paid)} of {len(pairs)} paid")
    assert paid == pairs


def test_answers_verify_against_other_spellings(shared: Path) -> None:
    pairs = list(dict.fromkeys((answer, other) for answer in answers(shared) for other in respelt(answer)))
    paid = rate(pairs)
    print(f"other spellings: {len(paid)} of {len(pairs)} paid")
    assert paid == pairs


def test_answers_do_not_verify_against_changed_values(shared: Path) -> None:
    pairs = list(dict.fromkeys((answer, other) for answer in answers(shared) for other in changed(answer)))
    paid = rate(pairs)
    print(f"changed values: {len(paid)} of {len(pairs)} paid")
    assert paid == []
