"""A slot: the place where calls run one after another, set up once; it makes the child of each call and cleans up.

A slot never runs user code itself. Where the machine allows it is PID 1 of its own namespaces, with a root of its own
(see `isolation.py`); otherwise it is a child subreaper.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from dataclasses import dataclass

from rstar_sandbox import isolation, processes, quota
from rstar_sandbox._cgroups import SlotGroup
from rstar_sandbox.capture import Capture
from rstar_sandbox.child import be_child, child_limits
from rstar_sandbox.families import Family, NamespaceFamily, SweptFamily
from rstar_sandbox.interpreter import default_signals, prepare_interpreter
from rstar_sandbox.limits import Limits
from rstar_sandbox.meters import GroupMeter, Watchdog
from rstar_sandbox.watch import MAX_REPORT_BYTES, Meter, Pipes

__all__ = ["Slot", "WaitingChild", "leave"]


@dataclass
class WaitingChild:
    """A child that has given up its rights and waits for its program."""

    pid: int
    channel: socket.socket
    pipes: Pipes
    wall_seconds: float
    """What it took to make, and the CPU time of the slot in it."""
    cpu_seconds: float

    def close(self) -> None:
        """Closes the slot's ends."""
        for capture in (self.pipes.out, self.pipes.err):
            capture.close()
        self.channel.close()


class Slot:
    """Makes the calling process a slot.

    Args:
        number: tells the slots of a zygote apart.
        zygote: process id of the zygote.
        folder: an empty folder of the slot's own.
        plan: the isolation to enter.
        connection: to the service.
        group: the slot's control group, if the plan has one.
        tier: what the interpreter has imported.
        scratch_bytes: quota of what a call may write.
        scratch_files: most files of a call.

    Raises:
        OSError: something that worked when it was probed does not now.
    """

    def __init__(
        self,
        number: int,
        zygote: int,
        folder: str,
        plan: isolation.Plan,
        connection: socket.socket,
        group: SlotGroup | None,
        tier: str,
        scratch_bytes: int,
        scratch_files: int,
    ) -> None:
        self.plan, self.connection, self.group, self.tier = plan, connection, group, tier
        self.user = isolation.user_of_slot(plan, zygote, number)
        self._scratch_bytes, self._scratch_files = scratch_bytes, scratch_files
        self._shared_memory = not plan.namespaces and self.user is not None and os.path.isdir(quota.SHARED_MEMORY)
        default_signals()
        self.confinement = isolation.enter_slot(plan, folder, self.user, scratch_bytes, scratch_files)
        self.family: Family = NamespaceFamily(group) if plan.namespaces else SweptFamily(self.user)
        temporary = self.confinement.scratch[1] if plan.namespaces else self.home
        prepare_interpreter(self.home, temporary)
        # Folders whose attributes a program can change are its user's.
        self._owned = (self.home,) if self.user is not None else self.confinement.scratch
        self._mapped = processes.own_mapped_bytes()
        self._clean_files = quota.used_files(self.home) if plan.namespaces else 0

    @property
    def home(self) -> str:
        """Working directory of programs."""
        return self.confinement.home

    def fork_ahead(self) -> WaitingChild:
        """Makes the child of the next call.

        Raises:
            OSError: the kernel refuses.
        """
        wall, cpu = time.monotonic(), time.process_time()
        ours, theirs = socket.socketpair()
        out, err = Capture(0), Capture(0)
        limits = child_limits(self.user, self.plan)
        pid = self.family.fork()
        if pid == 0:
            try:
                ends = (out.write_end, err.write_end, theirs.fileno())
                be_child(ends, self.plan, self.user, self.confinement, limits, self._mapped)
            finally:
                os._exit(70)  # whatever happens, the child is no slot
        theirs.close()
        for capture in (out, err):
            capture.close_write_end()
        pipes = Pipes(out, err, Capture(MAX_REPORT_BYTES, ours.fileno()))
        ours.setblocking(True)
        return WaitingChild(pid, ours, pipes, time.monotonic() - wall, time.process_time() - cpu)

    def meter(self, limits: Limits) -> Meter | None:
        """What has to be looked at while a call with these limits runs.

        Raises:
            OSError: the kernel refuses.
        """
        if self.group is not None:
            return GroupMeter(self.group, limits.memory_bytes)
        if not self.plan.resource_limits:
            return None
        watched = None if self.plan.namespaces else self.home
        others = 1 if self.plan.namespaces else 0
        user = None if self.plan.namespaces else self.user
        return Watchdog(limits.memory_bytes, others, watched, self._scratch_bytes, self._scratch_files, user)

    def clean(self) -> None:
        """Removes what the last call wrote; all its processes are dead."""
        for folder in self._owned:
            quota.reset_folder(folder)
        if self.plan.namespaces and quota.used_files(self.home) == self._clean_files:
            return
        for folder, kept in self.confinement.kept.items():
            quota.empty_folder(folder, kept)
        if self._shared_memory and self.user is not None:
            quota.remove_of_user(quota.SHARED_MEMORY, self.user)


def leave(slot: Slot, child: WaitingChild | None) -> None:
    """Ends what is left of a slot before its process ends."""
    if child is not None:
        try:
            os.kill(child.pid, signal.SIGKILL)
            os.waitpid(child.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass
    slot.family.end()
    slot.clean()
