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
from typing import Protocol

from rstar_sandbox.capture import Capture
from rstar_sandbox.limits import Limits
from rstar_sandbox.messages import receive
from rstar_sandbox.processes import run_delay_seconds

__all__ = [
    "MAX_OUTPUT_BYTES",
    "MAX_PROCESSES",
    "MAX_REPORT_BYTES",
    "MOST_STARVED",
    "START_SECONDS",
    "Meter",
    "Pipes",
    "ServiceGoneError",
    "Watch",
]

MAX_OUTPUT_BYTES = 64 * 1024 * 1024
"""Standard output and error together after which a program is killed with OUTPUT_LIMIT."""
MAX_PROCESSES = 128
"""Processes of one call; where slots have control groups or users of their own the kernel refuses more, threads
included, elsewhere the call is killed as CRASHED."""
MAX_REPORT_BYTES = 4 * 1024 * 1024
START_SECONDS = 60.0
"""A child that has not begun with the program by then never will."""
MOST_STARVED = 3.0
"""A program that waits for a CPU gets at most this many times its wall limit."""
_KILLED_SECONDS = 0.02
_NO_PIDFD_SECONDS = 0.002


class ServiceGoneError(Exception):
    """The connection to the service ended while a call was running."""


class Meter(Protocol):
    """Looks at a running call from time to time."""

    seconds: float
    """How often."""

    def over(self) -> str | None:
        """The status for which the call has to be killed now, if any."""


@dataclass(frozen=True)
class Pipes:
    """The streams from a child; `report` also carries, first, the mark that the program begins."""

    out: Capture
    err: Capture
    report: Capture

    def all(self) -> tuple[Capture, Capture, Capture]:
        """All three."""
        return (self.out, self.err, self.report)


class Watch:
    """Watches one child until it ends, or until it has finished what it was asked to do.

    The clock starts when the child says that the program begins: it says so before the first instruction of the
    program, which therefore has no part in it.

    Args:
        connection: to the service, which may cancel.
        limits: what the program may use.
        pid: the child, as its parent knows it.
        pipes: from the child.
        meter: looks at memory, processes and files; None: nothing bounds them.
        interrupt_seconds: time that an interrupted child gets before it is killed at the wall limit; 0: none.
    """

    def __init__(
        self,
        connection: socket.socket,
        limits: Limits,
        pid: int,
        pipes: Pipes,
        meter: Meter | None,
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
        self.started = 0.0
        """When the program began (monotonic seconds); 0: it has not."""
        self.setup_cpu_seconds = 0.0
        """What the child used before."""
        self.ended = 0.0
        self._connection, self._limits, self._pid, self._meter = connection, limits, pid, meter
        self._interrupt_seconds = interrupt_seconds
        self._asked = time.monotonic()
        self._deadline = self._asked + START_SECONDS
        self._waited_before = 0.0
        self._checked = self._asked
        try:
            self._pidfd = os.pidfd_open(pid)
        except OSError:
            self._pidfd = -1

    @property
    def wall_seconds(self) -> float:
        """From the beginning of the program to its end."""
        return max(0.0, self.ended - self.started) if self.started else 0.0

    def run(self, finished: Callable[[], bool] = lambda: False) -> None:
        """Returns when the main process is dead and reaped, or when `finished` says so.

        Raises:
            ServiceGoneError: the connection ended.
        """
        poll = select.poll()
        captures = {capture.read_end: capture for capture in self.pipes.all() if capture.open}
        report, service = self.pipes.report, self._connection.fileno()
        for descriptor in (*captures, service):
            poll.register(descriptor, select.POLLIN)
        if self._pidfd >= 0:
            poll.register(self._pidfd, select.POLLIN)
        try:
            while True:
                gone = self._pidfd < 0
                for descriptor, _ in poll.poll(self._poll_milliseconds()):
                    if descriptor == self._pidfd:
                        gone = True
                    elif descriptor == service:
                        self._heed_service()
                    else:
                        capture = captures[descriptor]
                        capture.drain()
                        if not capture.open:
                            poll.unregister(descriptor)
                if not self.started and report.total_bytes:
                    self._begin()
                if (gone and self._reaped()) or finished():
                    self.ended = time.monotonic()
                    return
                self._enforce()
        finally:
            if self._pidfd >= 0:
                os.close(self._pidfd)

    def _begin(self) -> None:
        """Reads the mark `BEGIN monotonic-ns cpu-ns` and starts the clock there."""
        line = self.pipes.report.take_line()
        if line is None:
            return
        now = time.monotonic()
        try:
            moment, cpu = (int(word) / 1e9 for word in line.split()[1:3])
        except ValueError:  # threads of an earlier cell write to the channel
            moment, cpu = now, 0.0
        # The child may have begun a while before this process got to see it.
        self.started = min(max(moment, self._asked), now)
        self.setup_cpu_seconds = cpu
        self._deadline = self.started + self._limits.wall_seconds
        self._waited_before = run_delay_seconds(self._pid) if self._interrupt_seconds else 0.0

    def _poll_milliseconds(self) -> float | None:
        now = time.monotonic()
        seconds = self._deadline - now if self.killed_for is None else _KILLED_SECONDS
        if self._meter is not None:
            seconds = min(seconds, self._checked + self._meter.seconds - now)
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
        if self._meter is not None and now >= self._checked + self._meter.seconds:
            status = self._meter.over()
            self._checked = time.monotonic()
            if status is not None:
                self._kill(status)

    def _reach_deadline(self, now: float) -> None:
        if not self.started:
            # Only a session's process has run anything of the program's that could keep it from beginning.
            self._kill("timeout" if self._interrupt_seconds else "unavailable")
        elif self._interrupt_seconds and not self.interrupted:
            if self._was_starved(now):
                return
            self.interrupted = True
            self._deadline = now + self._interrupt_seconds
            self._signal(signal.SIGINT)
        elif self.interrupted or not self._was_starved(now):
            self._kill("timeout")

    def _was_starved(self, now: float) -> bool:
        """Puts the deadline off by the time that the program was ready to run and had no CPU.

        On an overloaded machine a program would else time out for what its neighbours do. Bounded, so that a limit
        stays one.
        """
        limit = self._limits.wall_seconds
        starved = min(run_delay_seconds(self._pid) - self._waited_before, (MOST_STARVED - 1) * limit)
        self._deadline = self.started + limit + starved
        return self._deadline > now + 0.001

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
