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
from rstar_sandbox.families import Family
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
_PATIENT_SECONDS = 0.002


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
        pid: the child, as the caller sees it.
        family: of the child; says when it has ended.
        pipes: from the child.
        meter: looks at memory, processes and files; None: nothing bounds them.
        interrupt_seconds: time that an interrupted child gets before it is killed at the wall limit; 0: none.
    """

    def __init__(
        self,
        connection: socket.socket,
        limits: Limits,
        pid: int,
        family: Family,
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
        self.ending = (0.0, 0.0)
        """What ending the call's namespace took already, wall and CPU seconds."""
        self._connection, self._limits, self._pid, self._family, self._meter = connection, limits, pid, family, meter
        self._interrupt_seconds = interrupt_seconds
        self._asked = time.monotonic()
        self._deadline = self._asked + START_SECONDS
        self._waited_before = 0.0
        self._checked = self._asked
        self._patient_until = self._asked + _PATIENT_SECONDS

    @property
    def wall_seconds(self) -> float:
        """From the beginning of the program to its end."""
        return max(0.0, self.ended - self.started) if self.started else 0.0

    def run(self, finished: Callable[[], bool] | None = None) -> None:
        """Returns when the main process is dead and reaped, or when `finished` says so.

        Most programs end soon and print little: waking up for each line they print would cost more than the line. So
        for the first moments only the end of a program is waited for, unless `finished` needs to see what it writes; a
        program that fills its pipe meanwhile waits no longer than that.

        Raises:
            ServiceGoneError: the connection ended.
        """
        poll = select.poll()
        captures = {capture.read_end: capture for capture in self.pipes.all() if capture.open}
        service, end = self._connection.fileno(), self._family.descriptor
        poll.register(service, select.POLLIN)
        if end >= 0:
            poll.register(end, select.POLLIN)
        patient = finished is None and end >= 0
        watched: dict[int, Capture] = {}
        while True:
            if not patient and not watched:
                watched = captures
                for descriptor in watched:
                    poll.register(descriptor, select.POLLIN)
            gone = end < 0
            for descriptor, _ in poll.poll(self._poll_milliseconds(patient)):
                if descriptor == end:
                    gone = True
                elif descriptor == service:
                    self._heed_service()
                else:
                    capture = watched[descriptor]
                    capture.drain()
                    if not capture.open:
                        poll.unregister(descriptor)
            if gone and self._reaped():
                self.pipes.report.drain()
                if not self.started and self.pipes.report.total_bytes:
                    self._begin()
                return
            if not self.started and self.pipes.report.total_bytes:
                self._begin()
            if finished is not None and finished():
                self.ended = time.monotonic()
                return
            self._enforce()
            patient = patient and time.monotonic() < self._patient_until

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

    def _poll_milliseconds(self, patient: bool) -> float | None:
        now = time.monotonic()
        seconds = self._deadline - now if self.killed_for is None else _KILLED_SECONDS
        if patient:
            seconds = min(seconds, self._patient_until - now)
        if self._meter is not None:
            seconds = min(seconds, self._checked + self._meter.seconds - now)
        if self._family.descriptor < 0:
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
        # Ids of a call are not given anew before the slot's next order, so this one cannot be another's.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, number)

    def _reaped(self) -> bool:
        ended = self._family.reap()
        if ended is None:
            return False
        self.exited, self.ended = True, ended.at
        self.wait_status, self.cpu_seconds, self.peak_bytes = ended.wait_status, ended.cpu_seconds, ended.peak_bytes
        self.ending = (ended.wall_seconds, ended.ending_cpu_seconds)
        return True
