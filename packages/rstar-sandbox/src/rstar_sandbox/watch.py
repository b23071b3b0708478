"""Watching one running program from outside: drain its pipes, enforce its limits, see it end."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from rstar_sandbox import processes
from rstar_sandbox.capture import Capture
from rstar_sandbox.limits import Limits
from rstar_sandbox.messages import receive

__all__ = ["MAX_OUTPUT_BYTES", "MAX_PROCESSES", "MAX_REPORT_BYTES", "Pipes", "ServiceGoneError", "Watch"]

MAX_OUTPUT_BYTES = 64 * 1024 * 1024
"""Standard output and error together after which a program is killed with OUTPUT_LIMIT."""
MAX_PROCESSES = 128
"""Processes of one call after which it is killed as CRASHED; where slots have users of their own, the kernel refuses
more, threads included."""
MAX_REPORT_BYTES = 4 * 1024 * 1024
_WATCH_SECONDS = 0.02
_NO_PIDFD_SECONDS = 0.002


class ServiceGoneError(Exception):
    """The connection to the service ended while a call was running."""


@dataclass(frozen=True)
class Pipes:
    """The pipes from a child."""

    out: Capture
    err: Capture
    report: Capture

    def all(self) -> tuple[Capture, Capture, Capture]:
        """All three."""
        return (self.out, self.err, self.report)


class Watch:
    """Watches one running child until it ends, or until it has finished what it was asked to do.

    Args:
        connection: to the service, which may cancel.
        limits: what the program may use.
        pid: the child, as its parent knows it.
        pipes: from the child.
        started: when the clock started (monotonic seconds).
        inherited: memory the child was born with, bytes.
        interrupt_seconds: time that an interrupted child gets before it is killed at the wall limit; 0: none.
    """

    def __init__(
        self,
        connection: socket.socket,
        limits: Limits,
        pid: int,
        pipes: Pipes,
        started: float,
        inherited: int,
        interrupt_seconds: float = 0.0,
    ) -> None:
        self.pipes = pipes
        self.killed_for: str | None = None
        """The status for which the child was killed."""
        self.interrupted = False
        """The child was asked to stop at the wall limit."""
        self.exited = False
        self.wait_status = 0
        self.cpu_seconds = 0.0
        self.peak_bytes = 0
        self._connection, self._limits, self._pid, self._inherited = connection, limits, pid, inherited
        self._interrupt_seconds = interrupt_seconds
        self._deadline = started + limits.wall_seconds
        self._memory_checked = started
        try:
            self._pidfd = os.pidfd_open(pid)
        except OSError:
            self._pidfd = -1

    def run(self, finished: Callable[[], bool] = lambda: False) -> None:
        """Returns when the main process is dead and reaped, or when `finished` says so.

        Raises:
            ServiceGoneError: the connection ended.
        """
        poll = select.poll()
        captures = {capture.read_end: capture for capture in self.pipes.all() if capture.open}
        for descriptor in (*captures, self._connection.fileno()):
            poll.register(descriptor, select.POLLIN)
        if self._pidfd >= 0:
            poll.register(self._pidfd, select.POLLIN)
        try:
            while True:
                for descriptor, _ in poll.poll(self._poll_milliseconds()):
                    capture = captures.get(descriptor)
                    if capture is not None:
                        capture.drain()
                        if not capture.open:
                            poll.unregister(descriptor)
                    elif descriptor == self._connection.fileno():
                        self._heed_service()
                if self._reaped() or finished():
                    return
                self._enforce()
        finally:
            if self._pidfd >= 0:
                os.close(self._pidfd)

    def _poll_milliseconds(self) -> float:
        now = time.monotonic()
        seconds = self._memory_checked + _WATCH_SECONDS - now
        if self.killed_for is None:
            seconds = min(seconds, self._deadline - now)
        if self._pidfd < 0:
            seconds = min(seconds, _NO_PIDFD_SECONDS)
        return max(0.0, seconds * 1000)

    def _heed_service(self) -> None:
        frame = receive(self._connection)
        if frame is None:
            raise ServiceGoneError
        if frame["kind"] in ("cancel", "close"):
            self._kill("cancelled")

    def _enforce(self) -> None:
        now = time.monotonic()
        if now >= self._deadline:
            self._reach_deadline(now)
        elif self.pipes.out.total_bytes + self.pipes.err.total_bytes > MAX_OUTPUT_BYTES:
            self._kill("output_limit")
        if now >= self._memory_checked + _WATCH_SECONDS:
            self._memory_checked = now
            limit, pids = self._limits.memory_bytes, processes.descendants()
            if len(pids) > MAX_PROCESSES:
                self._kill("crashed")
            elif processes.memory_of(pids, self._inherited, limit) > limit:
                self._kill("memory_limit")

    def _reach_deadline(self, now: float) -> None:
        if self._interrupt_seconds and not self.interrupted:
            self.interrupted = True
            self._deadline = now + self._interrupt_seconds
            self._signal(signal.SIGINT)
        else:
            self._kill("timeout")

    def _kill(self, status: str) -> None:
        if self.killed_for is None:
            self.killed_for = status
            self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        # The main process is not reaped yet, so its id cannot have been given to another.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, number)

    def _reaped(self) -> bool:
        pid, status, usage = os.wait4(self._pid, os.WNOHANG)
        if pid == 0:
            return False
        self.exited = True
        self.wait_status = status
        self.cpu_seconds = usage.ru_utime + usage.ru_stime
        self.peak_bytes = usage.ru_maxrss * 1024
        return True
