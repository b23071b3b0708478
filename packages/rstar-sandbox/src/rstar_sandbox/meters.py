"""What a slot looks at while a call runs: whether it uses too much memory, processes or files."""

from __future__ import annotations

import os
import time

from rstar_sandbox import processes
from rstar_sandbox._cgroups import SlotGroup
from rstar_sandbox.families import Family
from rstar_sandbox.quota import SHARED_MEMORY, bytes_of_user, exceeds
from rstar_sandbox.watch import MAX_PROCESSES

__all__ = ["GroupMeter", "Watchdog"]

_FILES_SECONDS = 0.1


class GroupMeter:
    """A `Meter` where a control group bounds the call: the whole call ends when the kernel killed a part of it.

    Args:
        group: of the slot.
        memory_bytes: what the call may use.

    Raises:
        OSError: the kernel refuses the limit.
    """

    seconds = 0.05

    def __init__(self, group: SlotGroup, memory_bytes: int) -> None:
        group.limit_memory(memory_bytes)
        self._group = group
        group.ran_out()  # what happened before is not this call's

    def over(self) -> str | None:
        """See `Meter`."""
        return "memory_limit" if self._group.ran_out() else None


class Watchdog:
    """A `Meter` where the kernel bounds single processes only: kills a call that uses too much.

    Args:
        memory_bytes: what the call may use beyond what its processes were born with.
        family: of the call.
        folder: whose content is bounded; None: it has a quota of its own.
        folder_bytes: most bytes in it.
        folder_files: most entries in it.
        user: of the program, whose files in shared memory count too; None: the slot's own, who writes none there.
    """

    seconds = 0.02

    def __init__(
        self,
        memory_bytes: int,
        family: Family,
        folder: str | None,
        folder_bytes: int,
        folder_files: int,
        user: int | None = None,
    ) -> None:
        self._memory_bytes, self._family = memory_bytes, family
        self._folder, self._folder_bytes, self._folder_files = folder, folder_bytes, folder_files
        self._user = user
        self._inherited = family.inherited_bytes
        self._files_checked = time.monotonic()

    def over(self) -> str | None:
        """See `Meter`."""
        pids = self._family.members()
        if len(pids) > MAX_PROCESSES:
            return "crashed"
        if processes.memory_of(pids, self._inherited, self._memory_bytes, self._user) > self._memory_bytes:
            return "memory_limit"
        now = time.monotonic()
        if self._folder is not None and now > self._files_checked + _FILES_SECONDS:
            self._files_checked = now
            if exceeds(self._folder, self._folder_bytes, self._folder_files):
                return "output_limit"
            if (
                self._user is not None
                and os.path.isdir(SHARED_MEMORY)
                and bytes_of_user(SHARED_MEMORY, self._user) > self._memory_bytes
            ):
                return "memory_limit"
        return None
