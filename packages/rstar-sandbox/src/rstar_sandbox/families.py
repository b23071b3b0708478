"""The processes of one call: how its main process is forked, and how everything it left behind is ended.

One child at a time: `order` begins to make the next one, `take` waits for it, `reap` says that it has ended, `end` ends
what is left of it.
"""

from __future__ import annotations

import abc
import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol

from rstar_sandbox import processes
from rstar_sandbox._cgroups import SlotGroup
from rstar_sandbox._namespaces import PidNamespace
from rstar_sandbox.messages import send

__all__ = ["Ended", "Ends", "Family", "Forked", "NamespaceFamily", "SweptFamily"]

Ends = tuple[int, int, int]
"""Descriptors of standard output, standard error, and the channel between slot and child: of one side."""


@dataclass(frozen=True)
class Forked:
    """A new child."""

    pid: int
    ends: Ends
    """The slot's: the first two are read without blocking."""
    wall_seconds: float
    """What the child took to make, and the CPU time of who made it where that is not the slot."""
    cpu_seconds: float = 0.0


@dataclass(frozen=True)
class Ended:
    """A child that has ended and is reaped."""

    wait_status: int
    cpu_seconds: float
    peak_bytes: int
    at: float
    """When it was seen to have ended, monotonic seconds."""
    wall_seconds: float = 0.0
    """What ending its namespace took, where that was done by another process than the slot, and its CPU time."""
    ending_cpu_seconds: float = 0.0


class Family(Protocol):
    """Makes the main process of a call, and later ends what is left of the call. One call at a time."""

    @property
    def inherited_bytes(self) -> int:
        """Resident memory that a child is born with, at most."""

    def members(self) -> list[int]:
        """Ids, as the slot sees them, of the call's processes."""

    @property
    def descriptor(self) -> int:
        """What can be read when the child has ended; -1: ask `reap` from time to time."""

    def order(self) -> None:
        """Begins to make the next child.

        Raises:
            OSError: the kernel refuses.
        """

    def is_made(self) -> bool:
        """Whether `take` returns at once."""

    def take(self) -> Forked:
        """The child that was ordered.

        Raises:
            OSError: the kernel refuses.
        """

    def start(self, channel: socket.socket, frame: dict[str, Any]) -> None:
        """Sends the child what it shall run.

        Args:
            channel: to the child, blocking.
            frame: a job or a session, without files.

        Raises:
            OSError: the child is gone.
        """

    def reap(self) -> Ended | None:
        """How the child ended, once; None: it lives."""

    def end(self) -> int:
        """Kills what is left, the child too if it lives; returns how many processes there were beside it."""


class _ForkingFamily(abc.ABC):
    """The slot forks by itself."""

    def __init__(self, run: Callable[[Ends], NoReturn]) -> None:
        self._run, self._pid, self._pidfd = run, 0, -1
        self._forked: Forked | None = None

    @property
    def inherited_bytes(self) -> int:
        """See `Family`."""
        return processes.own_resident_bytes()

    @property
    def descriptor(self) -> int:
        """See `Family`."""
        return self._pidfd

    def order(self) -> None:
        """See `Family`."""
        started = time.monotonic()
        ours, theirs = socket.socketpair()
        (out, out_end), (err, err_end) = os.pipe2(os.O_CLOEXEC), os.pipe2(os.O_CLOEXEC)
        self._pid = self._fork()
        if self._pid == 0:
            try:
                self._run((out_end, err_end, theirs.fileno()))
            finally:
                os._exit(70)  # whatever happens, the child is no slot
        theirs.close()
        for descriptor in (out_end, err_end):
            os.close(descriptor)
        for descriptor in (out, err):
            os.set_blocking(descriptor, False)
        with contextlib.suppress(OSError):
            self._pidfd = os.pidfd_open(self._pid)
        self._forked = Forked(self._pid, (out, err, ours.detach()), time.monotonic() - started)

    def is_made(self) -> bool:
        """See `Family`."""
        return self._forked is not None

    def take(self) -> Forked:
        """See `Family`."""
        forked, self._forked = self._forked, None
        assert forked is not None, "no child was ordered"
        return forked

    def start(self, channel: socket.socket, frame: dict[str, Any]) -> None:
        """See `Family`."""
        send(channel, frame)

    def reap(self) -> Ended | None:
        """See `Family`."""
        pid, status, usage = os.wait4(self._pid, os.WNOHANG)
        if pid == 0:
            return None
        self._forget()
        return Ended(status, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, time.monotonic())

    def _forget(self) -> None:
        self._pid = 0
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1

    def _end_main(self) -> None:
        """Kills and reaps the child, if it lives."""
        if self._pid:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(self._pid, signal.SIGKILL)
                os.waitpid(self._pid, 0)
            self._forget()

    @abc.abstractmethod
    def _fork(self) -> int:
        """The child's id, as the slot sees it; 0 in the child."""


class NamespaceFamily(_ForkingFamily):
    """A PID namespace for each call: the end of its init ends all that is in it, whatever it is doing."""

    def __init__(self, run: Callable[[Ends], NoReturn], group: SlotGroup | None) -> None:
        super().__init__(run)
        self._namespace, self._group, self._init = PidNamespace(), group, 0

    def _fork(self) -> int:
        pid, self._init = self._namespace.fork()
        return pid

    def members(self) -> list[int]:
        """See `Family`."""
        return processes.all_but(os.getpid(), self._init)

    def end(self) -> int:
        """See `Family`."""
        if not self._init:
            return 0
        self._end_main()
        # A group counts the slot itself and the init too.
        left = self._group.tasks() - 2 if self._group else len(self.members())
        self._namespace.end(self._init)
        self._init = 0
        return max(0, left)


class SweptFamily(_ForkingFamily):
    """Without namespaces: the slot is a child subreaper, so that every orphan of the call becomes its child."""

    def __init__(self, run: Callable[[Ends], NoReturn], user: int | None) -> None:
        super().__init__(run)
        self._user = user

    def _fork(self) -> int:
        return os.fork()

    def members(self) -> list[int]:
        """See `Family`."""
        return processes.descendants()

    def end(self) -> int:
        """See `Family`."""
        self._end_main()
        if not processes.reap_dead():
            return 0
        left = len(processes.descendants())
        if self._user is not None:
            self._kill_by_user(self._user)
        processes.kill_all()
        return max(1, left)

    def _kill_by_user(self, user: int) -> None:
        """One kill for all processes of a user of the slot's own: nothing outruns it by forking."""
        pid = os.fork()
        if pid == 0:
            try:
                os.setresgid(user, user, user)
                os.setresuid(user, user, user)
                os.kill(-1, signal.SIGKILL)
            finally:
                os._exit(0)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
