"""Control groups: one for each slot, which bounds the memory and the number of tasks of its call.

Resource limits count one process (memory) or one user (tasks, and never root's); a group counts the whole call, and
nobody else. Version 1 and version 2 hierarchies, below the service's own group, only where it may make groups there.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

__all__ = ["ControlGroups", "SlotGroup", "join", "probe"]

_PREFIX = "rstar-sandbox-"
_CONTROLLERS = ("memory", "pids")
_LEAF = f"/{_PREFIX}service"
# What the kernel charges for the call's page tables and pipes, and the slot's own growth.
_SLACK_BYTES = 16 * 1024 * 1024


class ControlGroups:
    """Makes and removes the groups of a zygote's slots.

    Args:
        name: tells this zygote's groups from others'.
        parents: by controller, the group below which to make them; None: the service's own.
    """

    def __init__(self, name: str, parents: dict[str, Path] | None = None) -> None:
        self._name = name.removeprefix(_PREFIX)
        self._parents = parents if parents is not None else _own_groups()

    def make(self, number: int, max_tasks: int) -> dict[str, Path]:
        """Makes the groups of a slot, by controller; one and the same in a version 2 hierarchy.

        Raises:
            OSError: a controller is missing, or there is no right to make groups.
        """
        missing = [name for name in _CONTROLLERS if name not in self._parents]
        if missing:
            raise OSError(f"no control group hierarchy with {' and '.join(missing)} here")
        groups = {name: parent / f"{_PREFIX}{self._name}-{number}" for name, parent in self._parents.items()}
        try:
            for group in groups.values():
                group.mkdir(exist_ok=True)
            (groups["pids"] / "pids.max").write_text(str(max_tasks))
        except OSError:
            self.remove(number)
            raise
        return groups

    def remove(self, number: int) -> None:
        """Removes the groups of a slot that has ended; does nothing when there are none."""
        self._remove(f"{_PREFIX}{self._name}-{number}")

    def remove_all(self) -> None:
        """Removes what groups of this name are left."""
        self._remove(f"{_PREFIX}{self._name}-*")

    def _remove(self, pattern: str) -> None:
        for parent in set(self._parents.values()):
            for group in parent.glob(pattern):
                with contextlib.suppress(OSError):
                    group.rmdir()


class SlotGroup:
    """A slot's handle on its group, by descriptors, so that it works when the slot no longer sees the hierarchy."""

    def __init__(self, groups: dict[str, Path]) -> None:
        memory = groups["memory"]
        version_1 = (memory / "memory.limit_in_bytes").exists()
        self._limit = _open(memory / ("memory.limit_in_bytes" if version_1 else "memory.max"), os.O_WRONLY)
        self._usage = _open(memory / ("memory.usage_in_bytes" if version_1 else "memory.current"))
        self._events = _open(memory / ("memory.oom_control" if version_1 else "memory.events"))
        self._tasks = _open(groups["pids"] / "pids.current")
        with contextlib.suppress(OSError):
            (memory / "memory.swap.max").write_text("0")
        self._baseline: int | None = None
        self._limited_to = -1
        self._kills = 0

    def descriptors(self) -> tuple[int, ...]:
        """What has to stay open."""
        return self._limit, self._usage, self._events, self._tasks

    @property
    def tasks_descriptor(self) -> int:
        """A file that says how many processes and threads are in the group."""
        return self._tasks

    def limit_memory(self, memory_bytes: int) -> None:
        """Bounds what the next call may use beyond what the slot and its waiting child use.

        Raises:
            OSError: the kernel refuses.
        """
        if self._baseline is None:
            self._baseline = int(os.pread(self._usage, 32, 0)) + _SLACK_BYTES
        wanted = self._baseline + memory_bytes
        if wanted != self._limited_to:
            os.pwrite(self._limit, str(wanted).encode(), 0)
            self._limited_to = wanted

    def ran_out(self) -> bool:
        """Whether the kernel has killed for memory since this was asked last."""
        for line in os.pread(self._events, 4096, 0).splitlines():
            if line.startswith(b"oom_kill "):
                before, self._kills = self._kills, int(line.split()[1])
                return self._kills > before
        return False

    def tasks(self) -> int:
        """Processes and threads in the group."""
        return int(os.pread(self._tasks, 32, 0))


def join(groups: dict[str, Path]) -> None:
    """Moves the calling process into groups; what it forks is in them too.

    Raises:
        OSError: the kernel refuses.
    """
    for group in set(groups.values()):
        (group / "cgroup.procs").write_text("0")


def probe() -> None:
    """Tries a group of its own.

    Raises:
        OSError: groups cannot be made, or do not bound anything.
    """
    groups = ControlGroups(f"probe{os.getpid()}")
    made = groups.make(0, 1)
    try:
        handle = SlotGroup(made)
        handle.limit_memory(1 << 30)
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                join(made)
                if os.fork() == 0:
                    os._exit(1)
            except BlockingIOError:
                code = 0
            finally:
                os._exit(code)
        if os.waitpid(pid, 0)[1] != 0:
            raise OSError("the group does not bound the number of processes")
        for descriptor in handle.descriptors():
            os.close(descriptor)
    finally:
        groups.remove_all()


def _open(path: Path, flags: int = os.O_RDONLY) -> int:
    return os.open(path, flags | os.O_CLOEXEC)


def _own_groups() -> dict[str, Path]:
    """By controller, the group of the calling process, as the file system shows it."""
    try:
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
        own = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    except OSError:
        return {}
    found: dict[str, Path] = {}
    for fields in mounts:  # a leaf of ours, see _hand_down, stands for the group it is in
        if len(fields) < 4 or fields[2] not in ("cgroup", "cgroup2"):
            continue
        options = fields[3].split(",")
        for _, names, path in ((number, names, path.removesuffix(_LEAF)) for number, names, path in own):
            if fields[2] == "cgroup":
                controllers = [name for name in names.split(",") if name in _CONTROLLERS and name in options]
            else:
                controllers = [] if names else _delegated(_below(fields[1], path))
            for name in controllers:
                found.setdefault(name, _below(fields[1], path))
    return found


def _below(mount: str, path: str) -> Path:
    """A group's folder; in a container the hierarchy may be mounted from the group itself on."""
    group = Path(mount) / path.lstrip("/")
    return group if group.is_dir() else Path(mount)


def _delegated(group: Path) -> list[str]:
    """Controllers of a version 2 group that its children have, after an attempt to hand them down."""
    subtree = group / "cgroup.subtree_control"
    try:
        offered = (group / "cgroup.controllers").read_text().split()
        wanted = [name for name in _CONTROLLERS if name in offered]
        if set(wanted) - set(subtree.read_text().split()):
            _hand_down(group, wanted)
        return [name for name in _CONTROLLERS if name in subtree.read_text().split()]
    except OSError:
        return []


def _hand_down(group: Path, controllers: list[str]) -> None:
    """A version 2 group hands controllers down only while no process is in it: they move to a leaf of their own.

    Only where the group holds nothing but this service, as under a service manager that delegates it.
    """
    pids = [int(pid) for pid in (group / "cgroup.procs").read_text().split()]
    family = {os.getpid(), os.getppid()}
    if not all(pid in family or _parent(pid) in family for pid in pids):
        raise OSError("other processes are in the service's control group")
    leaf = Path(f"{group}{_LEAF}")
    leaf.mkdir(exist_ok=True)
    try:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                (leaf / "cgroup.procs").write_text(str(pid))
        (group / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in controllers))
    except OSError:
        with contextlib.suppress(OSError):
            leaf.rmdir()
        raise


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
