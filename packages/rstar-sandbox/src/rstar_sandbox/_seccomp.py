"""The seccomp deny-list. Inherited by every descendant and irrevocable.

A deny-list that answers EPERM rather than an allow-list: NumPy and its relatives use system calls that nobody can
list, and a program that is refused something can say so in its traceback.
"""

from __future__ import annotations

import ctypes
import itertools
import platform
import struct

from rstar_sandbox._linux import prctl

__all__ = ["deny_system_calls"]

_PR_SET_SECCOMP = 22
_SECCOMP_MODE_FILTER = 2
# All CLONE_NEW* flags that clone(2) takes, and the one of PID namespaces.
_CLONE_NEW_ANY = 0x7E020000
_CLONE_NEWPID = 0x20000000
# Makes a process a child of the caller's parent: of the slot.
_CLONE_PARENT = 0x8000

# Denied: the network (every socket; socketpair stays), other processes' memory, namespaces and mounts, System V and
# POSIX message queues and shared memory (they outlive the call; files in /dev/shm do not), watching files (other calls
# read the same ones), kernel interfaces with a history of holes, and the machine's own administration.
_DENIED = (
    "socket", "ptrace", "process_vm_readv", "process_vm_writev", "process_madvise", "kcmp", "unshare", "mount",
    "umount2", "pivot_root", "chroot", "open_tree", "move_mount", "fsopen", "fsconfig", "fsmount", "fspick",
    "mount_setattr", "shmget", "semget", "msgget", "mq_open", "inotify_init1", "bpf", "perf_event_open", "userfaultfd",
    "fanotify_init", "io_uring_setup", "io_uring_enter", "io_uring_register", "keyctl", "add_key", "request_key",
    "kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module", "reboot", "swapon", "swapoff",
    "sethostname", "setdomainname", "open_by_handle_at", "pidfd_getfd", "settimeofday", "clock_settime", "acct",
    "quotactl", "syslog",
)  # fmt: skip
_OLD_FORMS = ("inotify_init",)
# By machine: the audit architecture, and the numbers of the system calls.
_NUMBERS: dict[str, tuple[int, dict[str, int]]] = {
    "x86_64": (
        0xC000003E,
        {
            "shmget": 29, "socket": 41, "clone": 56, "semget": 64, "msgget": 68, "ptrace": 101, "syslog": 103,
            "pivot_root": 155, "chroot": 161, "acct": 163, "settimeofday": 164, "mount": 165, "umount2": 166,
            "swapon": 167, "swapoff": 168, "reboot": 169, "sethostname": 170, "setdomainname": 171,
            "init_module": 175, "delete_module": 176, "quotactl": 179, "clock_settime": 227, "mq_open": 240,
            "kexec_load": 246, "add_key": 248, "request_key": 249, "keyctl": 250, "inotify_init": 253, "unshare": 272,
            "inotify_init1": 294, "perf_event_open": 298, "fanotify_init": 300, "open_by_handle_at": 304, "setns": 308,
            "process_vm_readv": 310, "process_vm_writev": 311, "kcmp": 312, "finit_module": 313,
            "memfd_create": 319, "kexec_file_load": 320, "bpf": 321, "userfaultfd": 323,
        },
    ),
    "aarch64": (
        0xC00000B7,
        {
            "inotify_init1": 26,
            "umount2": 39, "mount": 40, "pivot_root": 41, "chroot": 51, "quotactl": 60, "acct": 89, "unshare": 97,
            "kexec_load": 104, "init_module": 105, "delete_module": 106, "clock_settime": 112, "syslog": 116,
            "ptrace": 117, "reboot": 142, "sethostname": 161, "setdomainname": 162, "settimeofday": 170,
            "mq_open": 180, "msgget": 186, "semget": 190, "shmget": 194, "socket": 198, "add_key": 217,
            "request_key": 218, "keyctl": 219, "clone": 220, "swapon": 224, "swapoff": 225, "perf_event_open": 241,
            "fanotify_init": 262, "open_by_handle_at": 265, "setns": 268, "process_vm_readv": 270,
            "process_vm_writev": 271, "kcmp": 272, "finit_module": 273, "memfd_create": 279, "bpf": 280,
            "userfaultfd": 282, "kexec_file_load": 294,
        },
    ),
}  # fmt: skip
_EVERYWHERE = {
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "open_tree": 428, "move_mount": 429,
    "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433, "clone3": 435, "pidfd_getfd": 438,
    "process_madvise": 440, "mount_setattr": 442, "memfd_secret": 447,
}  # fmt: skip

_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_OFFSET_NUMBER, _OFFSET_ARCHITECTURE, _OFFSET_FIRST_ARGUMENT, _OFFSET_SECOND_ARGUMENT = 0, 4, 16, 24
_RETURN_ALLOW, _RETURN_ERRNO, _RETURN_KILL = 0x7FFF0000, 0x00050000, 0x80000000
_EPERM, _ENOSYS = 1, 38
_X32_BIT = 0x40000000


class _FilterProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _filter_program(pid_namespaces: bool, memory_files: bool) -> bytes | None:
    """The filter as classic BPF; None on a machine whose numbers are not known."""
    known = _NUMBERS.get(platform.machine())
    if known is None:
        return None
    architecture, numbers = known[0], {**known[1], **_EVERYWHERE}
    forbidden_flags = _CLONE_PARENT | _CLONE_NEW_ANY & ~(_CLONE_NEWPID if pid_namespaces else 0)
    refuse, allow = _step(_RETURN, _RETURN_ERRNO | _EPERM), _step(_RETURN, _RETURN_ALLOW)
    program = [
        _step(_LOAD, _OFFSET_ARCHITECTURE),
        _step(_JUMP_EQUAL, architecture, 1, 0),
        _step(_RETURN, _RETURN_KILL),  # another calling convention would bypass the numbers below
        _step(_LOAD, _OFFSET_NUMBER),
        _step(_JUMP_AT_LEAST, _X32_BIT, 0, 1),
        refuse,
        # clone3 hides its flags from the filter; libc falls back to clone on ENOSYS.
        _step(_JUMP_EQUAL, numbers["clone3"], 0, 1),
        _step(_RETURN, _RETURN_ERRNO | _ENOSYS),
        _step(_JUMP_EQUAL, numbers["clone"], 0, 4),
        _step(_LOAD, _OFFSET_FIRST_ARGUMENT),
        _step(_JUMP_ANY_BIT, forbidden_flags, 0, 1),
        refuse,
        allow,
        _step(_JUMP_EQUAL, numbers["setns"], 0, 4),
        _step(_LOAD, _OFFSET_SECOND_ARGUMENT),
        _step(_JUMP_EQUAL, _CLONE_NEWPID if pid_namespaces else 0xFFFFFFFF, 0, 1),
        allow,
        refuse,
    ]
    # Some machines have no older form of a call.
    for name in (
        *_DENIED,
        *(name for name in _OLD_FORMS if name in numbers),
        *(() if memory_files else ("memfd_create", "memfd_secret")),
    ):
        program += [_step(_JUMP_EQUAL, numbers[name], 0, 1), refuse]
    return b"".join([*program, allow])


def _prepared(pid_namespaces: bool, memory_files: bool) -> tuple[_FilterProgram, object] | None:
    content = _filter_program(pid_namespaces, memory_files)
    if content is None:
        return None
    buffer = ctypes.create_string_buffer(content)
    return _FilterProgram(len(content) // 8, ctypes.addressof(buffer)), buffer


# Made at import: after a fork nothing is looked up or built.
_PROGRAMS = {flags: _prepared(*flags) for flags in itertools.product((False, True), repeat=2)}


def deny_system_calls(*, pid_namespaces: bool = False, memory_files: bool = True) -> None:
    """Installs the deny-list; needs `set_no_new_privileges` first.

    Args:
        pid_namespaces: leaves to the caller, which holds the capability, making PID namespaces and entering them.
            Its children have no capability, so that the kernel refuses both to them.
        memory_files: leaves files in memory, which only a control group bounds.

    Raises:
        OSError: the kernel refuses, or the machine's system call numbers are not known (ENOSYS).
    """
    prepared = _PROGRAMS[pid_namespaces, memory_files]
    if prepared is None:
        raise OSError(_ENOSYS, f"no seccomp filter for {platform.machine()}")
    prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(prepared[0]))
