"""A slot's view of the processes below it: their number, their memory, and killing all of them."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from collections.abc import Iterator

from rstar_sandbox._linux import set_parent_death_signal

__all__ = [
    "all_but",
    "descendants",
    "kill_all",
    "memory_of",
    "own_mapped_bytes",
    "own_resident_bytes",
    "reap_dead",
    "resident_bytes",
    "run_delay_seconds",
]

_PAGE = resource.getpagesize()
_SWEEP_SECONDS = 5.0


def own_mapped_bytes() -> int:
    """Address space of the calling process; a forked child starts with the same."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[0]) * _PAGE


def own_resident_bytes() -> int:
    """Resident memory of the calling process; a forked child starts with about the same."""
    return resident_bytes("self")


def resident_bytes(pid: int | str) -> int:
    """Resident memory of a process, files that it maps included; 0 when it is gone."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE
    except (OSError, IndexError, ValueError):
        return 0


def all_but(*others: int) -> list[int]:
    """Processes that `/proc` shows, but these: in a slot with a root of its own, of the slot's namespace.

    Those of a call are always shown to their slot; others are not where the kernel hides what may not be looked into.
    """
    return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if pid not in others]


def reap_dead() -> bool:
    """Reaps children that are dead; True when living ones are left."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if pid == 0:
            return True


def run_delay_seconds(pid: int) -> float:
    """How long the main thread of a process was ready to run and had no CPU; 0 where the kernel does not say."""
    try:
        with open(f"/proc/{pid}/schedstat", "rb") as file:
            return int(file.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def descendants() -> list[int]:
    """Process ids, as `/proc` shows them, of everything below the calling process."""
    found: list[int] = []
    pending: list[int | str] = ["self"]
    while pending:
        for child in _children(pending.pop()):
            found.append(child)
            pending.append(child)
    return found


def memory_of(pids: list[int], inherited: int, limit: int, user: int | None = None) -> int:
    """Memory that these processes use beyond what they were born with, bytes.

    The cheap count charges libraries, and pages that the processes share among themselves, to each; only when it is
    over the limit is the proportional, slower one of anonymous and shared memory asked.

    Args:
        pids: as `/proc` shows them.
        inherited: resident memory of a process that was just forked, bytes.
        limit: bytes.
        user: whom they belong to, where that is another than the caller's.
    """
    cheap = sum(max(0, resident_bytes(pid) - inherited) for pid in pids)
    if cheap <= limit:
        return cheap
    with _as_user(user):
        return min(cheap, sum(_proportional_bytes(pid) for pid in pids))


def kill_all() -> None:
    """Kills every process below the calling one, whatever sessions and groups they moved to, and reaps them.

    The caller is a child subreaper (or process 1): killing its children hands it theirs, until there are none.
    """
    deadline = time.monotonic() + _SWEEP_SECONDS
    while True:
        _kill_children()
        if not _reap_all(deadline):
            return


def _kill_children() -> None:
    # All of them are stopped before the first is killed: a process that goes on forking cannot outrun the sweep.
    pids = descendants()
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)


def _reap_all(deadline: float) -> bool:
    """Reaps dead children; True when living ones are left and time for another round is too."""
    if not reap_dead() or time.monotonic() > deadline:
        return False
    time.sleep(0.0005)  # killed, not yet dead; another round also catches what was forked meanwhile
    return True


def _children(pid: int | str) -> list[int]:
    found: list[int] = []
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return found
    for thread in threads:
        try:
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found.extend(int(number) for number in file.read().split())
        except (OSError, ValueError):
            continue
    return found


@contextlib.contextmanager
def _as_user(user: int | None) -> Iterator[None]:
    """For a moment a user's rights over its processes, which root without the capability to trace does not have."""
    if user is None or os.geteuid() != 0:
        yield
        return
    os.setegid(user)
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        set_parent_death_signal(signal.SIGKILL)  # a change of user forgets it


def _proportional_bytes(pid: int) -> int:
    total = 0
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith((b"Pss_Anon:", b"Pss_Shmem:")):
                    total += int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return total
