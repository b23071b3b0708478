from __future__ import annotations

import json
from pathlib import Path

import pytest

from rstar_reward.extraction import Declared
from rstar_reward.math.equivalence import compare, unusable_gold
from rstar_reward.verdict import VerdictStatus
from rstar_reward.verifiers import load_verifier

CASES = [json.loads(line) for line in (Path(__file__).parents[1] / "own_cases.jsonl").read_text("utf-8").splitlines()]


def paid(gold: str, answer: str) -> bool:
    return compare(gold, answer).status is VerdictStatus.CORRECT


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['gold']} | {case['answer']}")
def test_own_labelled_cases(case: dict[str, object]) -> None:
    assert paid(str(case["gold"]), str(case["answer"])) == bool(case["expected"])


def test_alternatives_where_one_answer_was_asked_for_are_hedged() -> None:
    assert compare("7", r"4 \text{ or } 7").status is VerdictStatus.HEDGED


@pytest.mark.parametrize("gold", [r"\int_0^1 x\,dx", r"\sum_{k=1}^{3} k^2", r"\lim_{x \to 0} \frac{\sin x}{x}"])
def test_what_our_grammar_cannot_read_goes_to_math_verify(gold: str) -> None:
    assert paid(gold, gold.replace(r"\,", " "))


def test_the_veto_refuses_what_math_verify_would_round() -> None:
    assert paid(r"\sum_{k=1}^{3} k^2", "14")
    assert not paid(r"\sum_{k=1}^{3} k^2", "14.0000001")


@pytest.mark.parametrize("answer", ["9^{9^{9^{9}}}", "(10^9)!", r"\sum_{k=1}^{10^{12}} k", "1" + "+1" * 3000])
def test_what_could_blow_up_is_refused_by_its_looks(answer: str) -> None:
    judgement = load_verifier("math").quick("3", Declared(answer))
    assert judgement is not None
    assert judgement.status is VerdictStatus.TOO_COMPLEX


@pytest.mark.parametrize("gold", ["4", r"\frac{1}{2}", "B", r"\text{yes}", "(1,2)", r"\int_0^1 x\,dx", "9^{9^{9}}"])
def test_usable_references(gold: str) -> None:
    assert unusable_gold(gold) is None


@pytest.mark.parametrize("gold", ["?", "((", r"\frac{", "{}"])
def test_unusable_references(gold: str) -> None:
    assert unusable_gold(gold)


@pytest.mark.parametrize("answer", ["(-1)!", "(-3572)!", "\\frac{1}{(-2)!}", "(-4/2)!"])
def test_a_factorial_of_a_negative_whole_number_has_no_value(answer: str) -> None:
    assert compare("x=\\sqrt{1}", answer).status is VerdictStatus.WRONG
    assert compare("2", answer).status is VerdictStatus.WRONG
