"""Reports: what counts where."""

import json

import pytest

from rstar_eval.problems import EvalProblem
from rstar_eval.report import Report
from rstar_eval.settings import EvalSettings
from rstar_model.types import EndReason


def report(*samples, problems=(), **settings):
    return Report.of(samples, EvalSettings(**settings), problems=problems)


def test_unscorable_samples_are_counted_and_left_out(make_sample):
    found = report(make_sample("a"), make_sample("b", status="unscorable"), make_sample("c", status="bad_gold"))
    assert found.pass_at_1.mean == 1
    assert (found.overall.scored, found.overall.excluded) == (1, 2)
    assert found.overall.statuses == {"bad_gold": 1, "correct": 1, "unscorable": 1}


def test_score_of_finished_samples_stands_beside_the_truncation_share(make_sample):
    found = report(
        make_sample("a"),
        make_sample("b", status="no_answer", end_reason=EndReason.TRUNCATED),
        make_sample("c", status="no_answer", end_reason=EndReason.TRUNCATED),
        make_sample("d", status="wrong"),
    ).overall
    assert (found.truncation_share, found.finished_share) == (0.5, 0.5)
    assert (found.pass_at_1.mean, found.pass_at_1_finished.mean) == (0.25, 0.5)


def test_tool_shares_count_rollouts_and_calls(make_sample):
    found = report(
        make_sample("a", calls=["ok", "error", "ok", "ok"]),
        make_sample("b", calls=["parse_error"]),
        make_sample("c"),
        make_sample("d", calls=["timeout", "unavailable"]),
    ).overall
    assert found.tool_call_share == 0.5
    assert found.tool_error_share == 3 / 6


def test_extraction_rate_and_unread_answers(make_sample):
    found = report(
        make_sample("a"),
        make_sample("b", status="no_answer", text="<answer>none</answer>"),
        make_sample("c", status="no_answer", text="I do not know"),
        make_sample("d", status="wrong"),
    ).overall
    assert found.extraction_rate == 0.5
    assert found.answer_not_extracted == 1


def test_parts_are_reported_by_tag(make_sample):
    found = report(
        make_sample("a", tags=["easy", "word"]),
        make_sample("b", status="wrong", tags=["hard"]),
        make_sample("c", tags=["hard"]),
        make_sample("d"),
    )
    assert {tag: part.pass_at_1.mean for tag, part in found.by_tag.items()} == {"easy": 1, "hard": 0.5, "word": 1}


def test_order_of_samples_does_not_change_the_report(make_sample):
    samples = [make_sample(name, index, status) for name in "abc" for index, status in enumerate(["correct", "wrong"])]
    samples.append(make_sample("d", 0))
    assert report(*samples, samples=2) == report(*reversed(samples), samples=2)


def test_lost_samples_make_a_report_incomplete(make_sample):
    problems = [EvalProblem(name, "", "2") for name in "abc"]
    found = report(
        make_sample("a", 0), make_sample("a", 1), make_sample("b", 0, status="infrastructure"),
        make_sample("c", 0, status="bad_gold"), problems=problems, samples=2,
    )  # fmt: skip
    assert not found.complete
    assert found.missing == 3
    assert found.short_problems == ("b", "c")


def test_report_of_nothing_knows_nothing(make_sample):
    values = report(make_sample(status="infrastructure")).to_json_dict()
    for name in ("pass_at_1", "ci95", "truncation_share", "tool_error_share", "mean_turns"):
        assert values[name] is None


def test_written_report_is_json_with_the_fields_others_read(tmp_path, make_sample):
    found = report(make_sample("a", response_tokens=6), make_sample("b", status="wrong", turns=3))
    found.write(tmp_path / "deep" / "report.json")
    values = json.loads((tmp_path / "deep" / "report.json").read_text())
    assert values["pass_at_1"] == 0.5
    assert values["ci95"] == pytest.approx([found.pass_at_1.low, found.pass_at_1.high])
    assert (values["problems"], values["samples"], values["temperature"]) == (2, 2, EvalSettings().temperature)
    assert (values["mean_response_tokens"], values["mean_turns"]) == (5, 2)
    assert values["settings"]["seed"] == 0
