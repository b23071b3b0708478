"""Landlock: what a slot and everything below it may write to and signal. Needs no privilege, cannot be undone.

Only writing is handled: a slot and its programs write below the slot's own folder and nowhere else.
"""

from __future__ import annotations

import ctypes
import os
import struct

__all__ = ["available_abi", "confine", "confine_signals"]

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on every machine
_CREATE_RULESET_VERSION = 1
_RULE_PATH_BENEATH = 1

_WRITE_FILE = 1 << 1
# Removing and making of every kind of entry.
_CHANGE_FOLDERS = sum(1 << bit for bit in range(4, 13))
_REFER, _TRUNCATE = 1 << 13, 1 << 14  # from ABI 2 and 3
_NET_BIND, _NET_CONNECT = 1 << 0, 1 << 1  # from ABI 4
_SCOPE_ABSTRACT_SOCKETS, _SCOPE_SIGNALS = 1 << 0, 1 << 1  # from ABI 6
# The lowest version whose scopes keep a program from signalling processes outside its domain.
SIGNAL_ABI = 6

_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long


def available_abi() -> int:
    """The version that the kernel offers; 0: none."""
    version: int = _syscall(
        ctypes.c_long(_CREATE_RULESET), None, ctypes.c_size_t(0), ctypes.c_uint(_CREATE_RULESET_VERSION)
    )
    return max(0, version)


def confine(folder: str) -> None:
    """Confines the calling process and its descendants: writing below `folder` and to harmless devices only.

    Needs `set_no_new_privileges` first.

    Raises:
        OSError: the kernel refuses, or knows no Landlock.
    """
    abi = available_abi()
    files = _WRITE_FILE | (_TRUNCATE if abi >= 3 else 0)
    everything = files | _CHANGE_FOLDERS | (_REFER if abi >= 2 else 0)
    net = _NET_BIND | _NET_CONNECT if abi >= 4 else 0
    scope = _SCOPE_ABSTRACT_SOCKETS | _SCOPE_SIGNALS if abi >= SIGNAL_ABI else 0
    ruleset = _create(everything, net, scope)
    try:
        _allow(ruleset, folder, everything)
        for path in ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"):
            if os.path.exists(path):
                _allow(ruleset, path, files)
        if os.path.isdir("/dev/shm"):  # noqa: S108 - semaphores of multiprocessing live there
            _allow(ruleset, "/dev/shm", everything)  # noqa: S108 - allowed by design, nothing is created
        _restrict(ruleset)
    finally:
        os.close(ruleset)


def confine_signals() -> None:
    """Confines the calling process and its descendants to signalling one another; nothing before ABI 6.

    Raises:
        OSError: the kernel refuses.
    """
    if _SIGNAL_RULESET_ABI < SIGNAL_ABI:
        return
    ruleset = _create(0, 0, _SCOPE_SIGNALS)
    try:
        _restrict(ruleset)
    finally:
        os.close(ruleset)


def _create(files: int, net: int, scope: int) -> int:
    attributes = struct.pack("=QQQ", files, net, scope)
    # Older kernels take a shorter structure and refuse a longer one only where the rest is not zero.
    return _checked(
        _syscall(ctypes.c_long(_CREATE_RULESET), attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint(0)),
        "landlock_create_ruleset",
    )


def _allow(ruleset: int, path: str, rights: int) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = struct.pack("=Qi", rights, descriptor)
        _checked(
            _syscall(
                ctypes.c_long(_ADD_RULE),
                ctypes.c_int(ruleset),
                ctypes.c_int(_RULE_PATH_BENEATH),
                rule,
                ctypes.c_uint(0),
            ),
            f"landlock_add_rule({path})",
        )
    finally:
        os.close(descriptor)


def _restrict(ruleset: int) -> None:
    _checked(_syscall(ctypes.c_long(_RESTRICT_SELF), ctypes.c_int(ruleset), ctypes.c_uint(0)), "landlock_restrict_self")


def _checked(result: int, call: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
    return int(result)


_SIGNAL_RULESET_ABI = available_abi()
