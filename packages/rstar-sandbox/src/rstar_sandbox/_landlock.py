"""Landlock: what a process and everything below it may read, write and signal. Needs no privilege, cannot be undone."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Sequence

from rstar_sandbox._linux import check, syscall

__all__ = ["SIGNAL_ABI", "available_abi", "prepare", "restrict"]

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on every machine
_CREATE_RULESET_VERSION = 1
_RULE_PATH_BENEATH = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_FOLDER = 1 << 0, 1 << 1, 1 << 2, 1 << 3
# Removing and making of every kind of entry.
_CHANGE_FOLDERS = sum(1 << bit for bit in range(4, 13))
_REFER, _TRUNCATE = 1 << 13, 1 << 14  # from ABI 2 and 3
_NET_BIND, _NET_CONNECT = 1 << 0, 1 << 1  # from ABI 4
_SCOPE_ABSTRACT_SOCKETS, _SCOPE_SIGNALS = 1 << 0, 1 << 1  # from ABI 6
SIGNAL_ABI = 6
"""The lowest version whose scopes keep a program from signalling processes outside its domain."""


def available_abi() -> int:
    """The version that the kernel offers; 0: none."""
    version: int = syscall(
        ctypes.c_long(_CREATE_RULESET), None, ctypes.c_size_t(0), ctypes.c_uint(_CREATE_RULESET_VERSION)
    )
    return max(0, version)


def prepare(writable: Sequence[str], readable: Sequence[str] | None = None) -> int:
    """Makes a ruleset: a descriptor for `restrict`, which costs no path look-ups then.

    Args:
        writable: files and folders below which everything is allowed.
        readable: those that may be read and executed; None: reading is not confined.

    Raises:
        OSError: the kernel refuses, or knows no Landlock.
    """
    abi = available_abi()
    if abi == 0:
        raise OSError("the kernel offers no Landlock")
    write = _WRITE_FILE | (_TRUNCATE if abi >= 3 else 0)
    change = _CHANGE_FOLDERS | (_REFER if abi >= 2 else 0)
    read = _EXECUTE | _READ_FILE | _READ_FOLDER
    handled = write | change | (read if readable is not None else 0)
    net = _NET_BIND | _NET_CONNECT if abi >= 4 else 0
    scope = _SCOPE_ABSTRACT_SOCKETS | _SCOPE_SIGNALS if abi >= SIGNAL_ABI else 0
    ruleset = _create(handled, net, scope)
    try:
        for path in writable:
            _allow(ruleset, path, handled)
        for path in readable or ():
            _allow(ruleset, path, read)
    except OSError:
        os.close(ruleset)
        raise
    return ruleset


def restrict(ruleset: int) -> None:
    """Confines the calling process and its descendants; needs `set_no_new_privileges` first.

    Raises:
        OSError: the kernel refuses.
    """
    check(syscall(ctypes.c_long(_RESTRICT_SELF), ctypes.c_int(ruleset), ctypes.c_uint(0)), "landlock_restrict_self")


def _create(files: int, net: int, scope: int) -> int:
    attributes = struct.pack("=QQQ", files, net, scope)
    # Older kernels take a shorter structure and refuse a longer one only where the rest is not zero.
    return check(
        syscall(ctypes.c_long(_CREATE_RULESET), attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint(0)),
        "landlock_create_ruleset",
    )


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not os.path.isdir(path):
            rights &= _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE  # the kernel refuses folders' rights on a file
        rule = struct.pack("=Qi", rights, descriptor)
        result = syscall(
            ctypes.c_long(_ADD_RULE), ctypes.c_int(ruleset), ctypes.c_int(_RULE_PATH_BENEATH), rule, ctypes.c_uint(0)
        )
        check(result, f"landlock_add_rule({path})")
    finally:
        os.close(descriptor)
