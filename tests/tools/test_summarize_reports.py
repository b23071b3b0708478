"""One verdict over JUnit reports."""

import pytest
from summarize_reports import read_allowed, summarize

ALLOWED = read_allowed("# reasons\nneeds a GPU\nshared data absent  # beside the checkout\n")


def report(*bodies: str) -> str:
    cases = "".join(f'<testcase classname="t" name="n{i}">{body}</testcase>' for i, body in enumerate(bodies))
    return f"<testsuites><testsuite>{cases}</testsuite></testsuites>"


def skip(reason: str) -> str:
    return f'<skipped type="pytest.skip" message="{reason}">t.py:1</skipped>'


def test_counts_add_up_over_reports() -> None:
    total = summarize([("a.xml", report("", "")), ("b.xml", report("", skip("needs a GPU")))], ALLOWED)
    assert total.line == "3 passed, 0 failed, 1 skipped"
    assert not total.problems


@pytest.mark.parametrize("body", ['<failure message="no"/>', '<error message="no"/>'])
def test_failures_and_errors_count_as_failed(body: str) -> None:
    total = summarize([("a.xml", report("", body))], ALLOWED)
    assert total.line == "1 passed, 1 failed, 0 skipped"
    assert total.problems == ["failed: t::n1"]


def test_a_skip_outside_the_allow_list_is_a_problem() -> None:
    total = summarize([("a.xml", report("", skip("not today")))], ALLOWED)
    assert total.problems == ["skip that is not on the allow-list: t::n1: not today t.py:1"]


def test_the_reason_of_a_skipped_module_is_in_the_text() -> None:
    module = "<skipped message=\"collection skipped\">('t.py', 3, 'Skipped: {}')</skipped>"
    assert not summarize([("a.xml", report("", module.format("needs a GPU")))], ALLOWED).problems
    assert summarize([("a.xml", report("", module.format("not today")))], ALLOWED).problems


def test_an_expected_failure_is_a_skip_that_must_be_allowed() -> None:
    total = summarize([("a.xml", report("", '<skipped type="pytest.xfail" message="known"/>'))], ALLOWED)
    assert total.problems


def test_a_report_without_tests_is_a_problem() -> None:
    assert summarize([("a.xml", report())], ALLOWED).problems == ["a.xml: ran no test"]


def test_a_report_of_skips_alone_is_a_problem() -> None:
    assert summarize([("a.xml", report(skip("needs a GPU")))], ALLOWED).problems == ["a.xml: every test was skipped"]


def test_no_report_is_a_problem() -> None:
    assert summarize([], ALLOWED).problems == ["no report was written: no test session ran"]


def test_a_report_cut_short_is_a_problem() -> None:
    assert "not a readable report" in summarize([("a.xml", "<testsuites>")], ALLOWED).problems[0]
