"""What programs may leave in their folders, and emptying those folders after each call."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat

__all__ = ["SHARED_MEMORY", "bytes_of_user", "empty_folder", "exceeds", "remove_of_user", "reset_folder", "used_files"]


SHARED_MEMORY = "/dev/shm"  # noqa: S108 - where the C library keeps semaphores
"""Where programs without a root of their own meet those of other users."""


def exceeds(folder: str, max_bytes: int, max_files: int) -> bool:
    """Whether a folder holds more than allowed; looks at no more entries than it has to."""
    total = files = 0
    pending = [folder]
    while pending:
        try:
            entries = os.scandir(pending.pop())
        except OSError:
            continue
        with entries:
            for entry in entries:
                files += 1
                with contextlib.suppress(OSError):
                    information = entry.stat(follow_symlinks=False)
                    total += information.st_blocks * 512
                    if stat.S_ISDIR(information.st_mode):
                        pending.append(entry.path)
                if total > max_bytes or files > max_files:
                    return True
    return False


def used_files(folder: str) -> int:
    """Files and folders in the file system of `folder`."""
    found = os.statvfs(folder)
    return found.f_files - found.f_ffree


def empty_folder(folder: str, kept: frozenset[str]) -> None:
    """Removes everything below a folder but the entries `kept`, and never follows a link out of it."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name in kept:
                continue
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path, onerror=_open_up)
            else:
                with contextlib.suppress(OSError):
                    os.unlink(entry.path)


def reset_folder(folder: str) -> None:
    """Undoes what a program may do to a folder it owns: rights, times and attributes would tell the next call of it."""
    os.chmod(folder, 0o700)
    os.utime(folder, (0, 0))
    with contextlib.suppress(OSError):
        for name in os.listxattr(folder, follow_symlinks=False):
            os.removexattr(folder, name, follow_symlinks=False)


def bytes_of_user(folder: str, user: int) -> int:
    """What the plain files of a user in a shared folder take up."""
    total = 0
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                information = entry.stat(follow_symlinks=False)
                total += information.st_blocks * 512 if information.st_uid == user else 0
    return total


def remove_of_user(folder: str, user: int) -> None:
    """Removes the plain files of a user from a folder that others use too."""
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                if entry.stat(follow_symlinks=False).st_uid == user and not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.path)


def _open_up(function: object, path: str, _: object) -> None:
    """Where the program and the slot are one user, a folder without rights has to be given them first."""
    with contextlib.suppress(OSError):
        parent = os.path.dirname(path)
        if not os.path.islink(parent):
            os.chmod(parent, 0o700)
        if os.path.isdir(path) and not os.path.islink(path):
            os.chmod(path, 0o700)
            shutil.rmtree(path, ignore_errors=True)
        else:
            os.unlink(path)
