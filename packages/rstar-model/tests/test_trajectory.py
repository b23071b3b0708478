from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar_model.ledger import LedgerError, TokenLedger
from rstar_model.trajectory import (
    Segment,
    ToolCallRecord,
    Trajectory,
    from_json_dict,
    read_trajectories,
    to_json_dict,
    trajectory_from_proto,
    trajectory_to_proto,
    write_trajectories,
)
from rstar_model.types import EndReason, SpanKind, ToolStatus
from rstar_protos.errors import UserInputError
from rstar_protos.rollout.v1 import rollout_pb2

text = st.text(max_size=20)
small = st.integers(0, 2**31 - 1)
# The wire holds float32, which is what engines compute in.
float32 = st.floats(-40, 0, width=32)
seconds = st.floats(0, 1e6)


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    ledger = TokenLedger()
    ledger.append(SpanKind.PROMPT, draw(st.lists(small, max_size=4)))
    tokens = draw(st.lists(small, max_size=4))
    probs = draw(st.lists(float32, min_size=len(tokens), max_size=len(tokens)))
    ledger.append(SpanKind.POLICY, tokens, log_probs=probs, weight_version=draw(small))
    ledger.append(SpanKind.TOOL, draw(st.lists(small, max_size=4)), turn=1)
    call = st.builds(
        ToolCallRecord, small, text, text, st.sampled_from(ToolStatus), text, seconds, seconds, st.booleans()
    )
    return Trajectory(
        draw(text),
        draw(text),
        draw(text),
        draw(small),
        ledger,
        tuple(draw(st.lists(call, max_size=2))),
        draw(st.sampled_from(EndReason)),
        draw(small),
        draw(small),
        draw(seconds),
        draw(st.integers(0, 2**64 - 1)),
        tuple(draw(st.lists(st.builds(Segment, st.sampled_from(SpanKind), text, small), max_size=2))),
        draw(text),
        draw(text),
    )


@given(trajectories())
def test_the_wire_form_leads_back_unchanged(trajectory: Trajectory) -> None:
    data = trajectory_to_proto(trajectory).SerializeToString()
    assert trajectory_from_proto(rollout_pb2.Trajectory.FromString(data)) == trajectory


@given(trajectories())
def test_the_json_form_leads_back_unchanged(trajectory: Trajectory) -> None:
    assert from_json_dict(json.loads(json.dumps(to_json_dict(trajectory)))) == trajectory


def make(**changes) -> Trajectory:
    ledger = TokenLedger()
    ledger.append(SpanKind.PROMPT, [1, 2, 3])
    ledger.append(SpanKind.POLICY, [4, 5], log_probs=[-0.5, -0.25], weight_version=1)
    ledger.append(SpanKind.TOOL, [6], turn=1)
    fields = {
        "trajectory_id": "t",
        "problem_id": "p",
        "group_id": "g",
        "sample_index": 0,
        "ledger": ledger,
        "tool_calls": (),
        "end_reason": EndReason.ANSWERED,
        "turns": 2,
        "answer_tags": 0,
    }
    return Trajectory(**{**fields, **changes})


def test_files_hold_one_rollout_a_line_in_order(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    rollouts = [make(trajectory_id=str(number), error="two\nlines") for number in range(3)]
    write_trajectories(path, rollouts[:2])
    write_trajectories(path, rollouts[2:], append=True)
    assert list(read_trajectories(path)) == rollouts


def test_failures_are_counted_by_status_never_by_text() -> None:
    statuses = [ToolStatus.OK, ToolStatus.TIMEOUT, ToolStatus.UNAVAILABLE, ToolStatus.PARSE_ERROR]
    calls = tuple(ToolCallRecord(0, "f", "{}", status, "error: error") for status in statuses)
    assert make(tool_calls=calls).failed_tool_calls == 2


def test_policy_text_leaves_out_what_the_policy_did_not_write() -> None:
    segments = (
        Segment(SpanKind.TEMPLATE, "<reason>", 0),
        Segment(SpanKind.POLICY, "one ", 0),
        Segment(SpanKind.TOOL, "\\boxed{4}", 1),
        Segment(SpanKind.POLICY, "two", 1),
    )
    rollout = make(segments=segments)
    assert (rollout.policy_text, rollout.final_turn_text) == ("one two", "two")


def test_token_counts_come_from_the_ledger() -> None:
    assert (make().policy_tokens, make().response_tokens) == (2, 3)


def test_a_demonstration_is_not_sent_as_a_rollout() -> None:
    ledger = TokenLedger(demonstration=True)
    ledger.append(SpanKind.POLICY, [1])
    with pytest.raises(LedgerError):
        trajectory_to_proto(make(ledger=ledger))
    assert from_json_dict(to_json_dict(make(ledger=ledger))).ledger == ledger


def test_lengths_are_checked_where_a_message_comes_in() -> None:
    message = trajectory_to_proto(make())
    del message.spans[1].log_probs[0]
    with pytest.raises(LedgerError):
        trajectory_from_proto(message)


def test_log_probabilities_on_tool_tokens_are_refused() -> None:
    message = trajectory_to_proto(make())
    message.spans[2].log_probs.append(-1.0)
    with pytest.raises(LedgerError):
        trajectory_from_proto(message)


def test_float32_log_probabilities_are_not_rounded_by_the_wire() -> None:
    (value,) = struct.unpack("f", struct.pack("f", -0.1))
    ledger = TokenLedger()
    ledger.append(SpanKind.POLICY, [1], log_probs=[value], weight_version=0)
    assert trajectory_from_proto(trajectory_to_proto(make(ledger=ledger))).ledger.log_probs == [value]


@pytest.mark.parametrize("line", ["not json", "[]", "{}", json.dumps({**to_json_dict(make()), "end_reason": "bored"})])
def test_a_bad_line_is_the_users_error(tmp_path: Path, line: str) -> None:
    path = tmp_path / "rollouts.jsonl"
    path.write_text(line + "\n")
    with pytest.raises(UserInputError):
        list(read_trajectories(path))


def test_a_missing_file_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(UserInputError, match="nowhere"):
        list(read_trajectories(tmp_path / "nowhere"))
