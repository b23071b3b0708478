"""The verdict on a call, from what was seen outside of it. Pure.

The child's report says how its main code ended; it is believed only where the exit agrees with it.
"""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass
from typing import Any

__all__ = ["Report", "Verdict", "judge", "read_report"]


@dataclass(frozen=True)
class Report:
    """What a child said about its main code. Untrusted: a program can forge it, and gains nothing by it."""

    end: str
    value: str | None = None
    traceback: str | None = None
    exit_code: int = 0


@dataclass(frozen=True)
class Verdict:
    """How a call ended."""

    status: str
    exit_code: int | None = None
    signal: int | None = None
    value: str | None = None
    traceback: str | None = None
    detail: str = ""


_STATUS_OF_END = {"ok": "ok", "error": "error", "memory": "memory_limit"}


def read_report(content: bytes) -> Report | None:
    """A child's report; None when there is none or it is not one."""
    try:
        data: Any = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(data, dict) or data.get("end") not in (*_STATUS_OF_END, "exit"):
        return None
    code = data.get("exit_code")
    return Report(
        end=data["end"],
        value=_text(data.get("value")),
        traceback=_text(data.get("traceback")),
        exit_code=code if type(code) is int and 0 <= code <= 255 else 0,
    )


def judge(
    wait_status: int,
    killed_for: str | None,
    cpu_seconds: float,
    cpu_limit: float,
    report: Report | None,
    ran_out_of_memory: bool = False,
) -> Verdict:
    """The verdict.

    Args:
        wait_status: of the main process, as wait4 gives it.
        killed_for: the status for which the slot killed it ("timeout", ...); None: it was not killed.
        cpu_seconds: CPU time it used.
        cpu_limit: CPU time it was allowed.
        report: what it said, if anything.
        ran_out_of_memory: the kernel killed a process of the call because its memory was used up.
    """
    if os.WIFSIGNALED(wait_status):
        number = os.WTERMSIG(wait_status)
        if killed_for is not None and number == signal.SIGKILL:
            return Verdict(killed_for, signal=number)
        if ran_out_of_memory and number == signal.SIGKILL:
            return Verdict("memory_limit", signal=number)
        out_of_cpu = number == signal.SIGXCPU or (number == signal.SIGKILL and cpu_seconds >= cpu_limit)
        return Verdict("timeout" if out_of_cpu else "crashed", signal=number)
    code = os.WEXITSTATUS(wait_status)
    if report is None or report.exit_code != code:
        return Verdict("crashed", exit_code=code)
    if report.end == "exit":
        return Verdict("ok" if code == 0 else "crashed", exit_code=code)
    return Verdict(_STATUS_OF_END[report.end], exit_code=code, value=report.value, traceback=report.traceback)


def _text(value: object) -> str | None:
    """Text that fits a protobuf string: what `json` reads may hold lone surrogates."""
    return value.encode("utf-8", "backslashreplace").decode("utf-8") if isinstance(value, str) else None
