"""Verdicts from wait statuses and reports."""

from __future__ import annotations

import json
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar_sandbox.verdict import Report, judge, read_report


def _exited(code: int) -> int:
    return code << 8


def _judge(status: int, killed_for: str | None = None, cpu: float = 0.1, report: Report | None = None) -> str:
    return judge(status, killed_for, cpu, 10.0, report).status


def test_a_report_that_agrees_with_the_exit_is_believed() -> None:
    verdict = judge(_exited(0), None, 0.1, 10.0, Report("ok", value="5"))
    assert (verdict.status, verdict.value, verdict.exit_code) == ("ok", "5", 0)


def test_an_exit_without_a_report_is_a_crash_whatever_its_code() -> None:
    assert [_judge(_exited(code)) for code in (0, 1, 255)] == ["crashed"] * 3


@given(st.integers(0, 255), st.integers(0, 255), st.sampled_from(["ok", "error", "memory", "exit"]))
def test_a_report_that_disagrees_with_the_exit_is_not_believed(code: int, said: int, end: str) -> None:
    status = _judge(_exited(code), report=Report(end, exit_code=said))
    assert (status == "crashed") == (code != said or (end == "exit" and code != 0))


@given(st.sampled_from([n for n in signal.Signals if n not in (signal.SIGXCPU, signal.SIGKILL)]))
def test_a_signal_is_a_crash_even_after_a_good_report(number: signal.Signals) -> None:
    verdict = judge(int(number), None, 0.1, 10.0, Report("ok", value="5"))
    assert (verdict.status, verdict.signal, verdict.value) == ("crashed", int(number), None)


@pytest.mark.parametrize("reason", ["timeout", "memory_limit", "output_limit"])
def test_a_kill_by_the_slot_has_the_reason_of_the_slot(reason: str) -> None:
    assert _judge(signal.SIGKILL, killed_for=reason) == reason


def test_a_program_that_ended_by_itself_just_before_the_kill_keeps_its_own_end() -> None:
    assert _judge(_exited(0), killed_for="timeout", report=Report("ok")) == "ok"


def test_running_out_of_cpu_is_a_timeout() -> None:
    assert _judge(signal.SIGXCPU) == "timeout"
    assert _judge(signal.SIGKILL, cpu=10.5) == "timeout"
    assert _judge(signal.SIGKILL, cpu=1.0) == "crashed"


@given(st.binary())
def test_any_bytes_are_a_report_or_none(content: bytes) -> None:
    assert read_report(content) is None or json.loads(content)["end"]


@given(
    st.dictionaries(
        st.sampled_from(["end", "value", "traceback", "exit_code"]),
        st.none() | st.integers() | st.text() | st.sampled_from(["ok", "error", "exit"]) | st.lists(st.integers()),
    )
)
def test_a_forged_report_has_usable_fields_or_is_none(data: dict[str, object]) -> None:
    report = read_report(json.dumps(data).encode())
    if report is not None:
        assert report.end in ("ok", "error", "memory", "exit")
        assert 0 <= report.exit_code <= 255
        assert all(text is None or isinstance(text, str) for text in (report.value, report.traceback))


def test_lone_surrogates_in_a_report_become_utf8() -> None:
    report = read_report(b'{"end": "ok", "value": "\\ud800"}')
    assert report is not None
    assert report.value == "\\ud800"


def test_a_deeply_nested_report_is_none() -> None:
    assert read_report(b"[" * 1_000_000) is None
