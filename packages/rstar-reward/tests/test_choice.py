from __future__ import annotations

import pytest

from rstar_reward import VerdictStatus, check_golds, verify
from rstar_reward.verifiers import load_verifier


@pytest.mark.parametrize(
    "response",
    [
        "<answer>C</answer>",
        "<answer>(C)</answer>",
        "<answer>\\boxed{C}</answer>",
        "<answer>\\boxed{\\text{(C)}}</answer>",
        "<answer>c</answer>",
        "<answer>C) 42 m/s</answer>",
        "<answer>The correct answer is C.</answer>",
        "<answer>Option C</answer>",
        "Speed only depends on height.\n\nAnswer: C",
        "So the choice is \\boxed{C}.",
    ],
)
def test_the_letter_of_the_reference_is_paid_however_it_is_written(response: str) -> None:
    assert verify("C", response, verifier="choice").reward == 1
    assert verify("(C)", response, verifier="choice").reward == 1
    assert verify("B", response, verifier="choice").reward == 0


@pytest.mark.parametrize(
    "response",
    [
        "<answer>C or D</answer>",
        "<answer>A, B, C, D</answer>",
        "<answer>not C</answer>",
        "<answer>Either \\boxed{C} or \\boxed{D}</answer>",
        "<answer>\\boxed{}</answer>",
        "<answer>all of them</answer>",
        "Choice C looks good.",
        "<answer>C</answer> wait <answer>D</answer>",
        "",
    ],
)
def test_anything_but_one_letter_is_not_paid(response: str) -> None:
    assert verify("C", response, verifier="choice").reward == 0


def test_the_text_of_the_choice_counts_as_its_letter() -> None:
    assert verify("C) 42 m/s", "<answer>42 m/s</answer>", verifier="choice").reward == 1
    assert verify("C) 42 m/s", "<answer>C</answer>", verifier="choice").reward == 1
    assert verify("C) 42 m/s", "<answer>43 m/s</answer>", verifier="choice").reward == 0


def test_two_choices_are_a_hedge() -> None:
    verdict = verify("C", "<answer>Either \\boxed{C} or \\boxed{D}</answer>", verifier="choice")
    assert verdict.status is VerdictStatus.HEDGED


def test_references_without_a_letter_are_refused() -> None:
    assert set(check_golds(["A", "(D)", "42", "", "B) yes"], "choice")) == {2, 3}
    assert load_verifier("choice").check_gold("42")
