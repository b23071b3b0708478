"""CPU time of process trees, from /proc: what the kernel charged, whoever the process says it is."""

from __future__ import annotations

import contextlib
import os
import resource
from dataclasses import dataclass

__all__ = ["TreeTime", "machine_seconds", "own_seconds", "tree_time"]

_TICK = os.sysconf("SC_CLK_TCK")
# Fields of /proc/PID/stat after the command: ppid, then user and system time, own and of reaped children.
_PARENT, _TIMES, _REAPED = 1, slice(11, 13), slice(13, 15)


@dataclass(frozen=True)
class TreeTime:
    """CPU seconds of a process and of everything below it, reaped processes included."""

    root: float
    below: float


def tree_time(root: int) -> TreeTime:
    """CPU time of the tree below a process, so far."""
    parents: dict[int, int] = {}
    own: dict[int, float] = {}
    reaped: dict[int, float] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
            pid = int(name)
            parents[pid] = int(fields[_PARENT])
            own[pid] = sum(map(int, fields[_TIMES])) / _TICK
            reaped[pid] = sum(map(int, fields[_REAPED])) / _TICK
    tree, grew = {root}, True
    while grew:
        more = {pid for pid, parent in parents.items() if parent in tree} - tree
        tree |= more
        grew = bool(more)
    total = sum(own.get(pid, 0.0) + reaped.get(pid, 0.0) for pid in tree)
    mine = own.get(root, 0.0)
    return TreeTime(mine, total - mine)


def own_seconds() -> float:
    """CPU time of this process and of its reaped children, so far."""
    usages = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def machine_seconds() -> float:
    """CPU time that this machine spent on anything, so far."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _idle, _iowait, irq, softirq, *_ = map(int, file.readline().split()[1:])
    return (user + nice + system + irq + softirq) / _TICK
