"""What must hold for every answer."""

from __future__ import annotations

import contextlib
import re

from hypothesis import given, settings
from hypothesis import strategies as st

from rstar_reward.judge import prepare
from rstar_reward.math.equivalence import compare
from rstar_reward.math.lexer import ParseError
from rstar_reward.math.parser import parse_answer
from rstar_reward.verdict import Verdict, VerdictStatus

_numbers = st.one_of(
    st.integers(-50, 50).map(str),
    st.tuples(st.integers(1, 30), st.integers(2, 30)).map(lambda pair: rf"\frac{{{pair[0]}}}{{{pair[1]}}}"),
    st.integers(2, 30).map(lambda value: rf"\sqrt{{{value}}}"),
    st.sampled_from([r"\pi", "x", "y", "e", "2.5"]),
)
expressions = st.recursive(
    _numbers,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda pair: f"{pair[0]} + {pair[1]}"),
        st.tuples(inner, inner).map(lambda pair: rf"({pair[0]}) \cdot ({pair[1]})"),
        st.tuples(inner, inner).map(lambda pair: rf"\frac{{{pair[0]}}}{{{pair[1]}}}"),
        inner.map(lambda text: f"({text})^2"),
        inner.map(lambda text: f"-({text})"),
    ),
    max_leaves=5,
)
answers = st.one_of(
    expressions,
    st.lists(expressions, min_size=2, max_size=4).map(", ".join),
    st.lists(expressions, min_size=2, max_size=3).map(lambda items: f"({', '.join(items)})"),
    st.lists(expressions, min_size=1, max_size=3).map(lambda items: rf"\{{{', '.join(items)}\}}"),
)

_settings = settings(max_examples=60, deadline=None)


def paid(gold: str, answer: str) -> bool:
    return compare(gold, answer).status is VerdictStatus.CORRECT


@_settings
@given(answers, answers)
def test_equality_is_symmetric(one: str, other: str) -> None:
    assert paid(one, other) == paid(other, one)


@_settings
@given(answers, st.sampled_from([" ", "\n", r"\,", r"\;", "  "]))
def test_white_space_does_not_matter(answer: str, space: str) -> None:
    spaced = re.sub(r"[+,()]", lambda sign: f"{space}{sign.group()}{space}", answer)
    assert paid(answer, spaced) == paid(answer, answer)


@_settings
@given(answers)
def test_style_does_not_matter(answer: str) -> None:
    styled = answer.replace(r"\frac", r"\dfrac").replace("(", r"\left(").replace(")", r"\right)")
    assert paid(answer, f"${styled}$") == paid(answer, answer)


@_settings
@given(expressions, st.integers(1, 10**6))
def test_a_number_that_was_changed_is_not_paid(answer: str, change: int) -> None:
    assert not paid(answer, f"{answer} + {change}")
    assert not paid(answer, rf"{answer} + \frac{{1}}{{{change * 10**12}}}")


@_settings
@given(expressions, expressions)
def test_a_contradictory_equation_is_never_paid(gold: str, other: str) -> None:
    if not paid(gold, other):
        assert not paid(gold, f"{other} = {gold}") or "x" in other + gold or "y" in other + gold


@_settings
@given(st.text(alphabet=" \t\n$.{}()\\,;*_-", max_size=12), st.sampled_from(["0", "", "42", r"\emptyset", "x"]))
def test_an_empty_answer_is_never_paid(empty: str, gold: str) -> None:
    if "\\" in empty:
        return
    for response in (f"<answer>{empty}</answer>", f"\\boxed{{{gold}}} <answer>{empty}</answer>"):
        verdict = prepare(gold, response)
        assert not (isinstance(verdict, Verdict) and verdict.reward)


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet=r"0123456789abxyz+-*/^_=<>(){}[]|\,;:.!%&' fracsqrt", max_size=40), st.text(max_size=10))
def test_any_text_gets_a_verdict(text: str, gold: str) -> None:
    verdict = prepare(gold, f"<answer>\\boxed{{{text}}}</answer>")
    if not isinstance(verdict, Verdict):
        assert compare(gold, text).status in VerdictStatus


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet=r"0123456789abxyz+-*/^_=<>(){}[]|\,;:.!%&' ", max_size=60))
def test_the_parser_reads_or_refuses(text: str) -> None:
    with contextlib.suppress(ParseError):
        parse_answer(text)
