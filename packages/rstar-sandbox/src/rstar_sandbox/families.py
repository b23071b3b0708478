"""The processes of one call: how its main process is forked, and how everything it left behind is ended."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Protocol

from rstar_sandbox import processes
from rstar_sandbox._cgroups import SlotGroup
from rstar_sandbox._namespaces import PidNamespace

__all__ = ["Family", "NamespaceFamily", "SweptFamily"]


class Family(Protocol):
    """Forks the main process of a call, and later ends what is left of the call. One call at a time."""

    def fork(self) -> int:
        """Forks; 0 in the child.

        Raises:
            OSError: the kernel refuses.
        """

    def end(self) -> int:
        """Kills what is left after the main process was reaped; returns how many processes that were."""


class NamespaceFamily:
    """A PID namespace for each call: the end of its init ends all that is in it, whatever it is doing."""

    def __init__(self, group: SlotGroup | None) -> None:
        self._namespace, self._group, self._init = PidNamespace(), group, 0

    def fork(self) -> int:
        """See `Family`."""
        pid, self._init = self._namespace.fork()
        return pid

    def end(self) -> int:
        """See `Family`."""
        if not self._init:
            return 0
        # Beside the slot itself and the init.
        left = (self._group.tasks() if self._group else processes.count_all()) - 2
        self._namespace.end(self._init)
        self._init = 0
        return max(0, left)


class SweptFamily:
    """Without namespaces: the slot is a child subreaper, so that every orphan of the call becomes its child."""

    def __init__(self, user: int | None) -> None:
        self._user = user

    def fork(self) -> int:
        """See `Family`."""
        return os.fork()

    def end(self) -> int:
        """See `Family`."""
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
