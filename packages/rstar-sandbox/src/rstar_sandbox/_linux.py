"""The few Linux calls that Python's standard library does not offer, through ctypes.

All function objects are made at import, in the zygote, so that nothing is looked up after a fork.
Every function raises OSError with the call's errno when the kernel refuses.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct

__all__ = [
    "CLONE_NEWIPC",
    "CLONE_NEWNET",
    "CLONE_NEWPID",
    "CLONE_NEWUTS",
    "deny_system_calls",
    "drop_capabilities",
    "drop_capability_bounds",
    "set_child_subreaper",
    "set_no_new_privileges",
    "set_parent_death_signal",
    "unshare",
]

CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
# All CLONE_NEW* flags that clone(2) takes.
_CLONE_NEW_ANY = 0x7E020000

_PR_SET_PDEATHSIG = 1
_PR_SET_SECCOMP = 22
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION_3 = 0x20080522
_LAST_CAPABILITY = 63

_libc = ctypes.CDLL(None, use_errno=True)
_libc.prctl.argtypes = [ctypes.c_int] + [ctypes.c_ulong] * 4
_libc.unshare.argtypes = [ctypes.c_int]
_libc.capset.argtypes = [ctypes.c_void_p, ctypes.c_void_p]


class _FilterProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def _check(result: int, call: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")


def _prctl(option: int, *arguments: int) -> None:
    padded = (*arguments, 0, 0, 0, 0)[:4]
    _check(_libc.prctl(option, *padded), f"prctl({option})")


def set_parent_death_signal(number: int) -> None:
    """The calling process gets this signal when its parent thread ends. Cleared by a change of user id."""
    _prctl(_PR_SET_PDEATHSIG, number)


def set_child_subreaper() -> None:
    """Orphaned descendants become children of the calling process instead of init's."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def set_no_new_privileges() -> None:
    """No set-uid program or file capability raises the privileges of this process or its descendants."""
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def unshare(flags: int) -> None:
    """Moves the calling process (for CLONE_NEWPID: its next children) into new namespaces."""
    _check(_libc.unshare(flags), "unshare")


def drop_capability_bounds() -> None:
    """Empties the bounding set: no program that is executed later gains a capability."""
    for capability in range(_LAST_CAPABILITY + 1):
        if _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break  # the first number that this kernel does not know, or no right to shrink the set


def drop_capabilities() -> None:
    """Empties the effective, permitted, inheritable and ambient sets of the calling process."""
    _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    header = ctypes.create_string_buffer(struct.pack("Ii", _CAPABILITY_VERSION_3, 0))
    empty = ctypes.create_string_buffer(24)
    _check(_libc.capset(header, empty), "capset")


# Denied: the network (every socket; socketpair stays), other processes' memory, namespaces and mounts,
# kernel interfaces with a history of holes, and the machine's own administration.
_DENIED_NAMES = (
    "socket", "ptrace", "process_vm_readv", "process_vm_writev", "unshare", "setns", "mount", "umount2",
    "pivot_root", "chroot", "bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter",
    "io_uring_register", "keyctl", "add_key", "request_key", "kexec_load", "kexec_file_load", "init_module",
    "finit_module", "delete_module", "reboot", "swapon", "swapoff", "sethostname", "setdomainname",
    "open_by_handle_at", "pidfd_getfd", "settimeofday", "clock_settime", "acct", "quotactl",
)  # fmt: skip
# By machine: the audit architecture, and the numbers of the system calls.
_NUMBERS: dict[str, tuple[int, dict[str, int]]] = {
    "x86_64": (
        0xC000003E,
        {
            "socket": 41, "clone": 56, "ptrace": 101, "settimeofday": 164, "acct": 163, "pivot_root": 155,
            "chroot": 161, "mount": 165, "umount2": 166, "swapon": 167, "swapoff": 168, "reboot": 169,
            "sethostname": 170, "setdomainname": 171, "init_module": 175, "delete_module": 176, "quotactl":
            179, "clock_settime": 227, "kexec_load": 246, "add_key": 248, "request_key": 249, "keyctl": 250,
            "unshare": 272, "perf_event_open": 298, "open_by_handle_at": 304, "setns": 308,
            "process_vm_readv": 310, "process_vm_writev": 311, "finit_module": 313, "kexec_file_load": 320,
            "bpf": 321, "userfaultfd": 323, "io_uring_setup": 425, "io_uring_enter": 426,
            "io_uring_register": 427, "clone3": 435, "pidfd_getfd": 438,
        },
    ),
    "aarch64": (
        0xC00000B7,
        {
            "umount2": 39, "mount": 40, "pivot_root": 41, "chroot": 51, "quotactl": 60, "acct": 89,
            "unshare": 97, "kexec_load": 104, "init_module": 105, "delete_module": 106, "clock_settime":
            112, "ptrace": 117, "reboot": 142, "sethostname": 161, "setdomainname": 162, "settimeofday":
            170, "socket": 198, "add_key": 217, "request_key": 218, "keyctl": 219, "clone": 220, "swapon":
            224, "swapoff": 225, "perf_event_open": 241, "open_by_handle_at": 265, "setns": 268,
            "process_vm_readv": 270, "process_vm_writev": 271, "finit_module": 273, "bpf": 280,
            "userfaultfd": 282, "kexec_file_load": 294, "io_uring_setup": 425, "io_uring_enter": 426,
            "io_uring_register": 427, "clone3": 435, "pidfd_getfd": 438,
        },
    ),
}  # fmt: skip

_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_OFFSET_NUMBER, _OFFSET_ARCHITECTURE, _OFFSET_FIRST_ARGUMENT = 0, 4, 16
_RETURN_ALLOW, _RETURN_ERRNO, _RETURN_KILL = 0x7FFF0000, 0x00050000, 0x80000000
_EPERM, _ENOSYS = 1, 38
_X32_BIT = 0x40000000


def _filter_program() -> bytes | None:
    """The seccomp filter as classic BPF: a deny-list that answers EPERM; None on an unknown machine."""
    known = _NUMBERS.get(platform.machine())
    if known is None:
        return None
    architecture, numbers = known
    denied = [numbers[name] for name in _DENIED_NAMES]

    def step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
        return struct.pack("=HBBI", code, if_true, if_false, value)

    program = [
        step(_LOAD, _OFFSET_ARCHITECTURE),
        step(_JUMP_EQUAL, architecture, 1, 0),
        step(_RETURN, _RETURN_KILL),  # another calling convention would bypass the numbers below
        step(_LOAD, _OFFSET_NUMBER),
        step(_JUMP_AT_LEAST, _X32_BIT, 0, 1),
        step(_RETURN, _RETURN_ERRNO | _EPERM),
        # clone3 hides its flags from the filter; libc falls back to clone on ENOSYS.
        step(_JUMP_EQUAL, numbers["clone3"], 0, 1),
        step(_RETURN, _RETURN_ERRNO | _ENOSYS),
        step(_JUMP_EQUAL, numbers["clone"], 0, 4),
        step(_LOAD, _OFFSET_FIRST_ARGUMENT),
        step(_JUMP_ANY_BIT, _CLONE_NEW_ANY, 0, 1),
        step(_RETURN, _RETURN_ERRNO | _EPERM),
        step(_RETURN, _RETURN_ALLOW),
    ]
    for number in denied:
        program.append(step(_JUMP_EQUAL, number, 0, 1))
        program.append(step(_RETURN, _RETURN_ERRNO | _EPERM))
    program.append(step(_RETURN, _RETURN_ALLOW))
    return b"".join(program)


_PROGRAM_BYTES = _filter_program()
_PROGRAM_BUFFER = ctypes.create_string_buffer(_PROGRAM_BYTES) if _PROGRAM_BYTES else None
_PROGRAM = (
    _FilterProgram(len(_PROGRAM_BYTES) // 8, ctypes.addressof(_PROGRAM_BUFFER))
    if _PROGRAM_BYTES and _PROGRAM_BUFFER
    else None
)


def deny_system_calls() -> None:
    """Installs the seccomp deny-list; needs `set_no_new_privileges` first. Inherited and irrevocable.

    Raises:
        OSError: the kernel refuses, or the machine's system call numbers are not known (ENOSYS).
    """
    if _PROGRAM is None:
        raise OSError(_ENOSYS, f"no seccomp filter for {platform.machine()}")
    _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(_PROGRAM))
