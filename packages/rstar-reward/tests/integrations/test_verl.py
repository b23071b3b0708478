"""The reward function by verl's calling convention: keyword arguments, from a thread of an executor.

`checks/verl_reward.py` has verl's own reward managers call it.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from rstar_protos.errors import UserInputError
from rstar_reward.integrations.verl import compute_score

RESPONSE = "assistant\n<tool_response>7</tool_response> so <answer>\\boxed{\\sqrt{8}}</answer>"


def test_a_score_with_its_status() -> None:
    call = {"data_source": "d", "solution_str": RESPONSE, "ground_truth": "2\\sqrt{2}", "extra_info": {"num_turns": 2}}
    with ThreadPoolExecutor(1) as executor:
        score = executor.submit(lambda: compute_score(**call)).result()
    assert score == {"score": 1.0, "acc": 1.0, "status": "correct", "pred": "\\sqrt{8}"}
    assert compute_score("d", RESPONSE, "7")["score"] == 0.0


def test_further_arguments_of_verl_do_no_harm() -> None:
    assert compute_score("d", RESPONSE, "3", None, reward_router_address=None)["score"] == 0.0


def test_a_bad_reference_is_raised_and_never_a_zero() -> None:
    with pytest.raises(UserInputError, match="ground_truth"):
        compute_score("d", RESPONSE, " ")
    assert compute_score("d", RESPONSE, " ", excluded_score=0.0)["status"] == "bad_gold"


def test_all_verdicts_have_the_same_keys() -> None:
    """verl makes a column of each key, over all responses of a batch."""
    responses = (
        RESPONSE,
        "<answer>3</answer>",
        "nothing",
        "<answer>either \\sqrt{8} or 3</answer>",
        "<answer>\\boxed{9^{9^{9^{9^{9}}}}}</answer>",
    )
    scores = [compute_score("d", response, "\\sqrt{8}") for response in responses]
    assert [score["status"] for score in scores] == ["correct", "wrong", "no_answer", "hedged", "too_complex"]
    assert {tuple(score) for score in scores} == {("score", "acc", "status", "pred")}


def test_another_kind_of_answer() -> None:
    assert compute_score("d", "<answer>B</answer>", "B", verifier="choice")["score"] == 1.0
