"""Samples: what is counted of a trajectory, and the stored line."""

import json

import pytest

from rstar_eval.sample import SampleRecord
from rstar_model.types import EndReason
from rstar_protos.errors import UserInputError


def test_sample_returns_from_its_line(make_sample):
    sample = make_sample("é\u2028", 3, "wrong", tags=["a"], calls=["ok", "error"])
    assert SampleRecord.from_json_dict(json.loads(json.dumps(sample.to_json_dict()))) == sample


def test_calls_are_counted_by_status(make_sample):
    sample = make_sample(calls=["ok", "error", "timeout", "parse_error", "unknown_tool", "unavailable"])
    assert (sample.tool_calls, sample.executed_tool_calls, sample.failed_tool_calls) == (5, 3, 4)


def test_unparsed_call_alone_is_no_tool_use(make_sample):
    assert make_sample(calls=["parse_error"]).executed_tool_calls == 0


@pytest.mark.parametrize("status", ["unscorable", "infrastructure", "cancelled"])
def test_infrastructure_is_lost_and_never_a_zero(make_sample, status):
    sample = make_sample(status=status)
    assert sample.lost
    assert not sample.scored


def test_bad_gold_is_excluded_but_not_asked_for_again(make_sample):
    sample = make_sample(status="bad_gold")
    assert not sample.scored
    assert not sample.lost


@pytest.mark.parametrize("text", ["\\boxed{3}", "<answer>3</answer>"])
def test_an_answer_nobody_could_read_is_noticed(make_sample, text):
    sample = make_sample(status="no_answer", text=text)
    assert sample.answer_present
    assert sample.extracted is None


def test_cut_rollout_is_not_finished(make_sample):
    assert not make_sample(status="no_answer", end_reason=EndReason.TRUNCATED).finished


@pytest.mark.parametrize("field", ["reward", "settings", "end_reason", "turns"])
def test_damaged_line_is_refused_by_field(make_sample, field):
    values = make_sample().to_json_dict()
    with pytest.raises(UserInputError, match=field):
        SampleRecord.from_json_dict({**values, field: object()})
    del values[field]
    with pytest.raises(UserInputError, match=field):
        SampleRecord.from_json_dict(values)
