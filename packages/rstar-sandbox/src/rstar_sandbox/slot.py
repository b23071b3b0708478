"""A slot: the place where calls run one after another, set up once; it has the child of each call made and cleans up.

A slot never runs user code itself, and where it can it does not fork either, but has a forker for that (`forker.py`).
Where the machine allows it is PID 1 of its own namespaces, with a root of its own (see `isolation.py`); otherwise it is
a child subreaper.
"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from typing import NoReturn

from rstar_sandbox import isolation, processes, quota
from rstar_sandbox._cgroups import SlotGroup
from rstar_sandbox.capture import Capture
from rstar_sandbox.child import be_child, child_limits, limits_are_fixed, rights_of_child
from rstar_sandbox.families import Ends, Family, NamespaceFamily, SweptFamily
from rstar_sandbox.forker import ForkerFamily
from rstar_sandbox.hot import EXTENSION
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
    ahead: bool
    """It was there before it was needed."""
    wall_seconds: float
    """What it took to make, and the CPU time of slot and forker in it."""
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
        temporary = self.confinement.scratch[1] if plan.namespaces else self.home
        prepare_interpreter(self.home, temporary)
        # Folders whose attributes a program can change are its user's.
        self._owned = (self.home,) if self.user is not None else self.confinement.scratch
        self._mapped = processes.own_mapped_bytes()
        self._clean_files = quota.used_files(self.home) if plan.namespaces else 0
        self._limits = child_limits(self.user, plan) if limits_are_fixed(self.user, plan) else None
        self._ordering_cpu = 0.0
        self.family = self._make_family()

    @property
    def home(self) -> str:
        """Working directory of programs."""
        return self.confinement.home

    def fork_ahead(self) -> None:
        """Has the child of the next call made.

        Raises:
            OSError: the kernel refuses.
        """
        before = time.process_time()
        self.family.order()
        self._ordering_cpu = time.process_time() - before

    def take_child(self) -> WaitingChild:
        """The child that was made ahead.

        Raises:
            OSError: the kernel refuses.
        """
        before, ahead = time.process_time(), self.family.is_made()
        forked = self.family.take()
        out, err, channel = forked.ends
        pipes = Pipes(Capture(0, out), Capture(0, err), Capture(MAX_REPORT_BYTES, channel))
        # Its kind is given, so that the kernel is not asked.
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, channel)
        cpu = time.process_time() - before + self._ordering_cpu + forked.cpu_seconds
        return WaitingChild(forked.pid, connection, pipes, ahead, forked.wall_seconds, cpu)

    def _make_family(self) -> Family:
        if not self.plan.namespaces:
            return SweptFamily(self._be_child, self.user)
        if EXTENSION is None or self._limits is None:
            return NamespaceFamily(self._be_child, self.group)
        rights = rights_of_child(self.plan, self.user, self.confinement, child_limits(self.user, self.plan))
        return ForkerFamily(self.group, rights, self.plan, self._mapped)

    def _be_child(self, ends: Ends) -> NoReturn:
        limits = self._limits if self._limits is not None else child_limits(self.user, self.plan)
        be_child(ends, self.plan, self.user, self.confinement, limits, self._mapped)

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
        user = None if self.plan.namespaces else self.user
        return Watchdog(limits.memory_bytes, self.family, watched, self._scratch_bytes, self._scratch_files, user)

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


def leave(slot: Slot) -> None:
    """Ends what is left of a slot before its process ends."""
    slot.family.end()
    slot.clean()
