"""A root file system of a slot's own: the read-only runtime, a scratch space with quotas, and nothing else.

Made once for a slot, in its own mount namespace. Paths of the runtime stay what they are outside, so that modules
imported later find their files. `/sandbox` (the working directory), `/tmp` and `/dev/shm` are parts of one tmpfs,
which bounds bytes and files together.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import struct
from collections.abc import Sequence

from rstar_sandbox._linux import check, libc, syscall

__all__ = ["HOME", "SCRATCH_FOLDERS", "build_root"]

HOME = "/sandbox"
"""The working directory of every program."""
SCRATCH_FOLDERS = (HOME, "/tmp", "/dev/shm")  # noqa: S108 - folders of a private file system

_NOSUID, _NODEV, _NOEXEC, _READ_ONLY = 0x2, 0x4, 0x8, 0x1
_REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 0x20, 0x1000, 0x4000, 0x40000
_DETACH = 2
_MOUNT_SETATTR = 442
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}

_DEVICES = ("null", "zero", "full", "random", "urandom")
_LINKS = {"/dev/fd": "/proc/self/fd", "/dev/stdin": "fd/0", "/dev/stdout": "fd/1", "/dev/stderr": "fd/2"}
# What the C library and time zones read; secrets live elsewhere.
_ETC = ("ld.so.cache", "localtime", "alternatives", "nsswitch.conf", "mime.types")
_PROC_OPTIONS = ("hidepid=2,subset=pid", "hidepid=2", None)

libc.mount.argtypes = [ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_char_p]
libc.umount2.argtypes = [ctypes.c_char_p, ctypes.c_int]


def build_root(
    base: str, runtime: Sequence[str], *, user: int, scratch_bytes: int, scratch_files: int
) -> dict[str, frozenset[str]]:
    """Moves the calling process, alone in a new mount namespace, to a new root.

    Args:
        base: an empty folder to build it on.
        runtime: absolute paths that stay readable.
        user: owner of the scratch folders.
        scratch_bytes: quota of the scratch space.
        scratch_files: most files and folders in it.

    Returns:
        The entries of each scratch folder that belong to the root itself and stay when it is emptied.

    Raises:
        OSError: the kernel refuses a step.
    """
    _mount(None, "/", None, _RECURSIVE | _PRIVATE)
    _mount("root", base, "tmpfs", _NOSUID | _NODEV, "size=4m,nr_inodes=4096,mode=755")
    _make_scratch(base, user, scratch_bytes, scratch_files)
    _make_devices(base)
    for path in sorted(runtime):
        _show(base, path)
    for name in _ETC:
        _show(base, f"/etc/{name}")
    _write(base + "/etc/passwd", f"sandbox:x:{user}:{user}::{HOME}:/bin/sh\n")
    _write(base + "/etc/group", f"sandbox:x:{user}:\n")
    _make_proc(base)
    own = {folder: frozenset(os.listdir(base + folder)) for folder in SCRATCH_FOLDERS}
    _pivot(base)
    return own


def _make_scratch(base: str, user: int, scratch_bytes: int, scratch_files: int) -> None:
    staging = base + "/.scratch"
    os.mkdir(staging, 0o700)
    options = f"size={scratch_bytes},nr_inodes={scratch_files},mode=700"
    _mount("scratch", staging, "tmpfs", _NOSUID | _NODEV, options)
    os.makedirs(base + "/dev", 0o755)
    for folder in SCRATCH_FOLDERS:
        part = os.path.join(staging, folder.strip("/").replace("/", "-"))
        os.mkdir(part)
        os.chmod(part, 0o1777)  # noqa: S103 - programs and the slot that empties it are different users
        if folder == HOME:
            os.chmod(part, 0o700)
            os.chown(part, user, user)
        os.mkdir(base + folder)
        _mount(part, base + folder, None, _BIND)
    _unmount(staging)
    os.rmdir(staging)


def _make_devices(base: str) -> None:
    for name in _DEVICES:
        if os.path.exists(f"/dev/{name}"):
            _write(f"{base}/dev/{name}", "")
            _mount(f"/dev/{name}", f"{base}/dev/{name}", None, _BIND)
    for path, target in _LINKS.items():
        os.symlink(target, base + path)


def _show(base: str, path: str) -> None:
    """Makes a path of the outside readable at the same place."""
    target = base + path
    if not os.path.lexists(path) or os.path.lexists(target):
        return
    os.makedirs(os.path.dirname(target), 0o755, exist_ok=True)
    if os.path.islink(path):
        os.symlink(os.readlink(path), target)
        return
    if os.path.isdir(path):
        os.mkdir(target)
    else:
        _write(target, "")
    _mount(path, target, None, _BIND | _RECURSIVE)
    _set_attributes(target)


def _set_attributes(target: str) -> None:
    attributes = struct.pack("=QQQQ", _READ_ONLY | _NOSUID | _NODEV, 0, 0, 0)
    result = syscall(
        ctypes.c_long(_MOUNT_SETATTR),
        ctypes.c_int(_AT_FDCWD),
        target.encode(),
        ctypes.c_uint(_AT_RECURSIVE),
        attributes,
        ctypes.c_size_t(len(attributes)),
    )
    if result != 0:  # before Linux 5.12; this reaches the mount itself and none below it
        _mount(None, target, None, _REMOUNT | _BIND | _READ_ONLY | _NOSUID | _NODEV)


def _make_proc(base: str) -> None:
    """`/proc` of the slot's PID namespace: the programs of other slots are not in it."""
    os.mkdir(base + "/proc")
    for options in _PROC_OPTIONS:
        try:
            _mount("proc", base + "/proc", "proc", _NOSUID | _NODEV | _NOEXEC, options)
            return
        except OSError as error:
            last = error
    raise last


def _pivot(base: str) -> None:
    os.mkdir(base + "/.outside")
    number = _PIVOT_ROOT[os.uname().machine]
    check(syscall(ctypes.c_long(number), base.encode(), (base + "/.outside").encode()), "pivot_root")
    os.chdir("/")
    _unmount("/.outside")
    os.rmdir("/.outside")
    _mount(None, "/", None, _REMOUNT | _BIND | _READ_ONLY | _NOSUID | _NODEV)


def _write(path: str, content: str) -> None:
    with contextlib.suppress(FileExistsError):
        os.makedirs(os.path.dirname(path), 0o755)
    with open(path, "w", encoding="utf-8") as file:
        file.write(content)


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    encoded = [None if text is None else text.encode() for text in (source, target, kind)]
    result = libc.mount(*encoded, flags, None if options is None else options.encode())
    check(result, f"mount({target})")


def _unmount(target: str) -> None:
    check(libc.umount2(target.encode(), _DETACH), f"umount({target})")
