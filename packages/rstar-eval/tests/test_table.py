"""What a report says to people."""

import io

from rich.console import Console

from rstar_eval.problems import EvalProblem
from rstar_eval.report import Report
from rstar_eval.settings import EvalSettings
from rstar_eval.table import report_table, tag_table, warnings
from rstar_model.types import EndReason


def shown(table):
    console = Console(file=io.StringIO(), width=200)
    console.print(table)
    return console.file.getvalue()


def report(*samples, problems=(), **settings):
    return Report.of(samples, EvalSettings(**settings), problems=problems, name="base")


def test_settings_stand_beside_the_score(make_sample):
    text = shown(report_table([report(make_sample(), temperature=0.3), report(make_sample(), tools_enabled=False)]))
    for part in ("base", "0.3", "1.000", "off"):
        assert part in text


def test_unknown_figures_are_a_dash_and_not_a_zero(make_sample):
    text = shown(report_table([report(make_sample(status="infrastructure"))]))
    assert "0.000" not in text
    assert "-" in text


def test_every_tag_has_a_row(make_sample):
    text = shown(tag_table(report(make_sample("a", tags=["one"]), make_sample("b", tags=["two"]))))
    assert "one" in text
    assert "two" in text


def test_clean_report_has_no_warnings(make_sample):
    assert warnings(report(make_sample())) == []


def test_everything_that_spoils_a_score_is_said(make_sample):
    found = warnings(
        report(
            make_sample("a", status="no_answer", end_reason=EndReason.TRUNCATED, text="\\boxed{1}"),
            make_sample("b", status="bad_gold"),
            make_sample("c", status="infrastructure"),
            problems=[EvalProblem(name, "", "2") for name in "abc"],
        )
    )
    for part in ("1 samples of 1 problems are missing", "gold answer", "infrastructure", "100% of", "was not read"):
        assert any(part in warning for warning in found)
