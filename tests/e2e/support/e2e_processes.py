"""Processes of a test: found by a mark in their environment, so that none can hide by losing its parent.

The mark is a folder at the end of `PATH`, the one variable that even the sandbox hands down to the programs it runs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

__all__ = ["PATIENCE", "alive", "arguments_of", "children_of", "eventually", "kill_marked", "marked", "nothing_left"]

_POLL_SECONDS = 0.02
# Waits are long enough for an idle machine with two cores; a busy one can be given more.
PATIENCE = float(os.environ.get("RSTAR_E2EPATIENCE", "1"))


def eventually(condition: Callable[[], object], what: str, seconds: float = 300.0) -> None:
    """Waits until a condition holds; fails saying what did not come true."""
    give_up = time.monotonic() + seconds * PATIENCE
    while not condition():
        if time.monotonic() > give_up:
            pytest.fail(f"not within {seconds * PATIENCE:g} s: {what}")
        time.sleep(_POLL_SECONDS)


def marked(mark: str) -> dict[int, str]:
    """Running processes whose environment holds the mark: command lines by process id."""
    found = {}
    for pid in _pids():
        with contextlib.suppress(OSError):
            if mark.encode() in Path(f"/proc/{pid}/environ").read_bytes():
                found[pid] = " ".join(arguments_of(pid))
    return found


def nothing_left(mark: str, seconds: float = 60.0) -> None:
    """Fails when a process with the mark is still there after a while, and names it."""
    give_up = time.monotonic() + seconds * PATIENCE
    while left := marked(mark):
        if time.monotonic() > give_up:
            pytest.fail(f"left running after {seconds * PATIENCE:g} s: {left}")
        time.sleep(_POLL_SECONDS)


def kill_marked(mark: str) -> None:
    """Ends what a failed test left behind."""
    for pid in marked(mark):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def children_of(pid: int) -> list[int]:
    """Direct children of a process."""
    return [child for child in _pids() if _parent(child) == pid]


def arguments_of(pid: int) -> list[str]:
    """Command line of a process; empty when it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")[:-1]
    return []


def alive(pid: int) -> bool:
    """Whether a process is there and not merely waiting to be reaped."""
    return _state(pid)[:1] not in ("", "Z", "X")


def _pids() -> list[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]


def _state(pid: int) -> str:
    """What follows the name in `/proc/PID/stat`: state, parent, ..."""
    with contextlib.suppress(OSError):
        # The name stands in parentheses and may hold any character.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2]
    return ""


def _parent(pid: int) -> int:
    fields = _state(pid).split()
    return int(fields[1]) if len(fields) > 1 else 0
