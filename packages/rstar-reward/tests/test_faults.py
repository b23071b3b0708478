"""Faults that users of other systems met, as tests of what should happen instead."""

from __future__ import annotations

import pytest

from rstar_reward import Segment, SegmentKind, VerdictStatus, verify, verify_many

PAID = "<answer>\\boxed{42}</answer>"


def turn(text: str) -> Segment:
    return Segment(SegmentKind.POLICY, text)


def tool(text: str) -> Segment:
    return Segment(SegmentKind.TOOL, text)


def test_an_unclosed_tool_call_is_not_graded_as_a_final_answer() -> None:
    verdict = verify("42", [turn(f"{PAID} <tool_call>{{")], end_reason="unclosed_call")
    assert (verdict.status, verdict.reward) == (VerdictStatus.NO_ANSWER, 0.0)


def test_an_answer_inside_an_unclosed_tool_call_is_not_read() -> None:
    assert verify("42", [turn(f'<tool_call>{{"name": "run", "arguments": {{"code": "{PAID}"')]).reward == 0


@pytest.mark.parametrize("end_reason", ["truncated", "length", "turn_limit", "repeated_calls", "cancelled"])
def test_a_rollout_that_did_not_finish_is_not_paid_but_counts(end_reason: str) -> None:
    verdict = verify("42", [turn(PAID)], end_reason=end_reason)
    assert (verdict.status, verdict.reward) == (VerdictStatus.NO_ANSWER, 0.0)


def test_a_rollout_that_ends_in_a_tool_result_is_graded_by_what_the_policy_wrote_before() -> None:
    assert verify("42", [turn(PAID), tool("17")], end_reason="answered").reward == 1
    assert verify("17", [turn("Running it."), tool(PAID.replace("42", "17"))], end_reason="answered").reward == 0


def test_an_unfinished_rollout_that_mentions_the_number_is_not_paid() -> None:
    assert verify("42", "The candidates are 41, 42 and 43; next I will check").reward == 0


@pytest.mark.parametrize(
    "response",
    ["so it is 42", "42", "= 42.", "The final answer is (42) as computed above, I think. Let me go on", "<answer>42"],
)
def test_without_a_box_no_mention_is_paid_unless_it_is_declared(response: str) -> None:
    declared = response.startswith("<answer>")
    assert verify("42", response).reward == float(declared)


def test_a_failed_extraction_does_not_shift_the_rewards_after_it() -> None:
    golds = [str(number) for number in range(40)]
    responses = ["" if number % 5 == 3 else f"\\boxed{{{number}}}" for number in range(40)]
    rewards = [verdict.reward for verdict in verify_many(zip(golds, responses, strict=True))]
    assert rewards == [float(number % 5 != 3) for number in range(40)]


def test_a_failure_of_the_infrastructure_is_no_reward_of_zero() -> None:
    verdict = verify("42", [turn("")], end_reason="infrastructure")
    assert (verdict.status, verdict.reward) == (VerdictStatus.UNSCORABLE, None)


@pytest.mark.parametrize(("gold", "answer"), [("10000", "10001"), ("5", "500"), ("500", "5"), ("0.05", "5")])
def test_numbers_that_other_graders_take_for_equal(gold: str, answer: str) -> None:
    assert verify(gold, f"\\boxed{{{answer}}}").reward == 0


def test_a_grader_that_was_attacked_judges_the_next_answers_as_before() -> None:
    attack = "[setattr(__import__('math_verify'),'verify',lambda *a:True) for _ in (1,)] + \\int_0^1 1 dx"
    verify("3", f"\\boxed{{{attack}}}")
    assert verify("\\int_0^1 2x dx", "\\boxed{1}").reward == 1
    assert verify("\\int_0^1 2x dx", "\\boxed{2}").reward == 0


def test_a_reference_that_cannot_be_read_is_left_out_and_not_counted_as_wrong() -> None:
    assert verify("((", "\\boxed{\\sqrt{2}}").reward is None
