"""The few Linux calls that Python's standard library does not offer, through ctypes: privileges and process control.

All function objects are made at import, in the zygote, so that nothing is looked up after a fork.
Every function raises OSError with the call's errno when the kernel refuses.
"""

from __future__ import annotations

import ctypes
import os
import struct

__all__ = [
    "check",
    "drop_capabilities",
    "drop_capability_bounds",
    "libc",
    "prctl",
    "set_child_subreaper",
    "set_dumpable",
    "set_no_new_privileges",
    "set_parent_death_signal",
    "syscall",
]

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_CAPABILITY_VERSION_3 = 0x20080522
_LAST_CAPABILITY = 63

libc = ctypes.CDLL(None, use_errno=True)
libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
libc.capset.argtypes = [ctypes.c_void_p, ctypes.c_void_p]

syscall = libc.syscall
syscall.restype = ctypes.c_long


def check(result: int, call: str) -> int:
    """The result of a call that answers -1 when it fails.

    Raises:
        OSError: it failed.
    """
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
    return result


def prctl(option: int, *arguments: int) -> None:
    """prctl(2)."""
    padded = (*arguments, 0, 0, 0, 0)[:4]
    check(libc.prctl(option, *padded), f"prctl({option})")


def set_parent_death_signal(number: int) -> None:
    """The calling process gets this signal when its parent thread ends. Cleared by a change of user id."""
    prctl(_PR_SET_PDEATHSIG, number)


def set_dumpable(dumpable: bool) -> None:
    """Whether processes of the same user may look into the calling one (ptrace, /proc/PID/mem, /proc/PID/fd)."""
    prctl(_PR_SET_DUMPABLE, int(dumpable))


def set_child_subreaper() -> None:
    """Orphaned descendants become children of the calling process instead of init's."""
    prctl(_PR_SET_CHILD_SUBREAPER, 1)


def set_no_new_privileges() -> None:
    """No set-uid program or file capability raises the privileges of this process or its descendants."""
    prctl(_PR_SET_NO_NEW_PRIVS, 1)


def drop_capability_bounds() -> None:
    """Empties the bounding set: no program that is executed later gains a capability."""
    for capability in range(_LAST_CAPABILITY + 1):
        if libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break  # the first number that this kernel does not know, or no right to shrink the set


def drop_capabilities() -> None:
    """Empties the effective, permitted, inheritable and ambient sets of the calling process."""
    libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    check(libc.capset(_CAPABILITY_HEADER, _NO_CAPABILITIES), "capset")


_CAPABILITY_HEADER = ctypes.create_string_buffer(struct.pack("Ii", _CAPABILITY_VERSION_3, 0))
_NO_CAPABILITIES = ctypes.create_string_buffer(24)
