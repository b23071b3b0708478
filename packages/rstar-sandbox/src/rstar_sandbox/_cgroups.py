"""One control group for each slot, which bounds how many processes and threads its programs have.

Resource limits count by user id and never count root's, so where programs keep the service's user this is what ends a
fork bomb. Version 1 and version 2 hierarchies; only where the service may make groups.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

__all__ = ["TaskGroups", "join", "probe"]

_PREFIX = "rstar-sandbox-"


class TaskGroups:
    """Makes and removes the groups of a zygote's slots.

    Args:
        name: tells this zygote's groups from others'.
        mount: where the hierarchy that counts tasks is mounted; None: look for it.
    """

    def __init__(self, name: str, mount: Path | None = None) -> None:
        self._name = name.removeprefix(_PREFIX)
        self._mount = mount or _find_mount()

    def make(self, number: int, max_tasks: int) -> Path:
        """Makes the group of a slot.

        Raises:
            OSError: there is no hierarchy that counts tasks, or no right to make groups in it.
        """
        if self._mount is None:
            raise OSError("no control group hierarchy counts tasks here")
        group = self._mount / f"{_PREFIX}{self._name}-{number}"
        group.mkdir()
        try:
            (group / "pids.max").write_text(str(max_tasks))
        except OSError:
            group.rmdir()
            raise
        return group

    def remove(self, number: int) -> None:
        """Removes the group of a slot that has ended; does nothing when there is none."""
        if self._mount is not None:
            with contextlib.suppress(OSError):
                (self._mount / f"{_PREFIX}{self._name}-{number}").rmdir()

    def remove_all(self) -> None:
        """Removes what groups of this name are left."""
        if self._mount is not None:
            for group in self._mount.glob(f"{_PREFIX}{self._name}-*"):
                with contextlib.suppress(OSError):
                    group.rmdir()


def join(group: Path) -> None:
    """Moves the calling process into a group; what it forks is in it too."""
    (group / "cgroup.procs").write_text("0")


def _find_mount() -> Path | None:
    try:
        lines = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return None
    for fields in (line.split() for line in lines):
        if len(fields) > 3 and fields[2] == "cgroup" and "pids" in fields[3].split(","):
            return Path(fields[1])
    for fields in (line.split() for line in lines):
        if len(fields) > 3 and fields[2] == "cgroup2":
            with contextlib.suppress(OSError):
                if "pids" in (Path(fields[1]) / "cgroup.subtree_control").read_text().split():
                    return Path(fields[1])
    return None


def probe() -> None:
    """Tries a group of its own.

    Raises:
        OSError: groups cannot be made, or do not bound anything.
    """
    groups = TaskGroups(f"probe{os.getpid()}")
    group = groups.make(0, 1)
    try:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                join(group)
                if os.fork() == 0:
                    os._exit(1)
            except BlockingIOError:
                code = 0
            finally:
                os._exit(code)
        if os.waitpid(pid, 0)[1] != 0:
            raise OSError("the group does not bound the number of processes")
    finally:
        groups.remove_all()
