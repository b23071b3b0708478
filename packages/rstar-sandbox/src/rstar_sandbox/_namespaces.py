"""Namespaces: a slot's own, made once, and a fresh PID namespace for each call.

A process whose parent namespace it left cannot make PID namespaces twice with unshare(2) (EINVAL), so each call's is
made by clone(2) together with its init. The init does nothing but wait (libc's own `pause`): it shares the slot's
memory, so making it copies no page tables. The program is forked into the namespace as process 2, which behaves as
any process does, where a process 1 would shrug off its own SIGTERM and abort.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import signal
from pathlib import Path

from rstar_sandbox._linux import check, libc, set_dumpable
from rstar_sandbox.hot import EXTENSION

__all__ = [
    "NEW_IPC",
    "NEW_MOUNT",
    "NEW_NET",
    "NEW_PID",
    "NEW_USER",
    "NEW_UTS",
    "PidNamespace",
    "map_own_user",
    "unshare",
]

NEW_MOUNT = 0x00020000
NEW_UTS = 0x04000000
NEW_IPC = 0x08000000
NEW_USER = 0x10000000
NEW_PID = 0x20000000
NEW_NET = 0x40000000
_CLONE_VM = 0x100
_STACK_BYTES = 64 * 1024

libc.unshare.argtypes = [ctypes.c_int]
libc.setns.argtypes = [ctypes.c_int, ctypes.c_int]
# Without letting go of the interpreter's lock: the new process must find it held, as after os.fork.
_libc_locked = ctypes.PyDLL(None, use_errno=True)
_libc_locked.clone.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
_PAUSE = ctypes.cast(libc.pause, ctypes.c_void_p)


def unshare(flags: int) -> None:
    """Moves the calling process (for NEW_PID: its next children) into new namespaces."""
    check(libc.unshare(flags), "unshare")


def map_own_user(inside: int, outside_user: int, outside_group: int) -> None:
    """Gives the calling process, alone in a new user namespace, the id `inside` there.

    Raises:
        OSError: the kernel refuses.
    """
    with contextlib.suppress(FileNotFoundError):
        Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/gid_map").write_text(f"{inside} {outside_group} 1")
    Path("/proc/self/uid_map").write_text(f"{inside} {outside_user} 1")


class PidNamespace:
    """Makes PID namespaces one after another, one at a time, and forks into them.

    Every signal of the calling process that has a Python handler would have it in the init too, which shares its
    memory; so there must be none.
    """

    def __init__(self) -> None:
        self.own = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        """The namespace of the calling process."""
        # Private: the init shares it because it shares all memory of its maker, a forked child gets a copy.
        self._stack = mmap.mmap(-1, _STACK_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._stack))
        self.stack_top = (base + _STACK_BYTES) & ~15
        """Where the stack of an init begins."""

    def fork(self) -> tuple[int, int]:
        """Forks into a fresh namespace.

        Returns:
            The ids, as the caller sees them, of the child and of the namespace's init; (0, 0) in the child.

        Raises:
            OSError: the kernel refuses.
        """
        init = EXTENSION.new_namespace(self.stack_top) if EXTENSION is not None else self._new_namespace()
        try:
            pid = os.fork()
        except OSError:
            self.end(init)
            check(libc.setns(self.own, NEW_PID), "setns")
            raise
        if pid == 0:
            return 0, 0
        check(libc.setns(self.own, NEW_PID), "setns")
        return pid, init

    def _new_namespace(self) -> int:
        # An init that ignores SIGCHLD has the orphans of its namespace reaped by the kernel.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        flags = NEW_PID | _CLONE_VM | signal.SIGCHLD
        try:
            init = check(_libc_locked.clone(_PAUSE, self.stack_top, flags, None), "clone")
        finally:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        descriptor = os.pidfd_open(init)
        # The kernel lets a process enter only namespaces of those it may look into; nobody else is there yet.
        set_dumpable(True)
        try:
            check(libc.setns(descriptor, NEW_PID), "setns")
        except OSError:
            self.end(init)
            raise
        finally:
            set_dumpable(False)
            os.close(descriptor)
        return init

    def end(self, init: int) -> None:
        """Kills an init and with it everything in its namespace; returns when all are gone.

        The end of a namespace waits until each of its processes is reaped. Those that are children of the caller
        (a program can give it some, with CLONE_PARENT) are reaped here.
        """
        with contextlib.suppress(ProcessLookupError):
            os.kill(init, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, 0)[0] != init:
                pass
