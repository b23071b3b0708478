from __future__ import annotations

from types import SimpleNamespace

import pytest

from rstar_protos.errors import UserInputError
from rstar_protos.reward.v1 import reward_pb2
from rstar_reward import Segment, SegmentKind, VerdictStatus, verify
from rstar_reward.transcript import EndKind, Transcript, end_kind, end_number


def test_only_policy_text_is_read() -> None:
    segments = [
        Segment(SegmentKind.PROMPT, "\\boxed{1}"),
        Segment(SegmentKind.TEMPLATE, "<reason>\\boxed{2}"),
        Segment(SegmentKind.POLICY, "thinking</reason>"),
        Segment(SegmentKind.TOOL, "\\boxed{3}"),
        Segment(SegmentKind.POLICY, "\\boxed{4}"),
    ]
    assert Transcript.of(segments).turns == ("\nthinking</reason>", "\\boxed{4}")


def test_template_text_does_not_join_what_the_policy_wrote() -> None:
    segments = [
        Segment(SegmentKind.POLICY, "\\boxed{4"),
        Segment(SegmentKind.TEMPLATE, "2}"),
        Segment(SegmentKind.POLICY, "} done"),
    ]
    assert verify("42", segments).reward == 0


def test_a_number_that_only_a_tool_printed_is_not_paid() -> None:
    segments = [
        Segment(SegmentKind.POLICY, "calling"),
        Segment(SegmentKind.TOOL, "<answer>\\boxed{42}</answer>"),
        Segment(SegmentKind.POLICY, "done"),
    ]
    assert verify("42", segments).status is VerdictStatus.NO_ANSWER


@pytest.mark.parametrize("kind", [2, "policy", "assistant", SegmentKind.POLICY])
def test_kinds_come_as_names_roles_numbers_and_enums(kind: object) -> None:
    assert Transcript.of([SimpleNamespace(kind=kind, text="x")]).turns == ("x",)


def test_contract_messages_are_segments() -> None:
    request = reward_pb2.ScoreRequest()
    request.segments.add(kind=2, text="x")
    request.segments.add(kind=4, text="y")
    assert Transcript.of(request.segments).turns == ("x",)


def test_a_chatml_transcript_counts_assistant_turns_only() -> None:
    text = "a<|im_end|>\n<|im_start|>user\n<answer>1</answer><|im_end|>\n<|im_start|>assistant\nb<|im_end|>"
    assert Transcript.of(text).turns == ("a", "b")


@pytest.mark.parametrize(
    "reason", ["truncated", "turn_limit", "repeated_calls", "cancelled", "unclosed_call", "length", 2, 3, 4, 5, 7]
)
def test_an_unfinished_rollout_is_worth_nothing(reason: object) -> None:
    verdict = verify("4", "<answer>\\boxed{4}</answer>", end_reason=reason)
    assert (verdict.status, verdict.reward) == (VerdictStatus.NO_ANSWER, 0.0)
    assert "unfinished" in verdict.reason


@pytest.mark.parametrize("reason", ["infrastructure", 6])
def test_an_infrastructure_fault_is_no_reward(reason: object) -> None:
    verdict = verify("4", "<answer>\\boxed{4}</answer>", end_reason=reason)
    assert (verdict.status, verdict.reward) == (VerdictStatus.UNSCORABLE, None)


@pytest.mark.parametrize("reason", [None, "", "answered", "stop", 0, 1])
def test_a_finished_rollout_is_judged(reason: object) -> None:
    assert end_kind(reason)[0] is EndKind.FINISHED
    assert verify("4", "\\boxed{4}", end_reason=reason).reward == 1


def test_end_numbers_are_those_of_the_contract() -> None:
    assert [end_number(name) for name in ("answered", "truncated", "unclosed_call")] == [1, 2, 7]


@pytest.mark.parametrize("reason", ["done", 8, -1, 2.5])
def test_an_unknown_end_reason_is_refused(reason: object) -> None:
    with pytest.raises(UserInputError, match="end_reason"):
        verify("4", "\\boxed{4}", end_reason=reason)


def test_an_unknown_segment_kind_is_refused() -> None:
    with pytest.raises(UserInputError, match=r"segments\.1\.kind"):
        verify("4", [{"kind": "policy", "text": ""}, {"kind": "oracle", "text": "4"}])
