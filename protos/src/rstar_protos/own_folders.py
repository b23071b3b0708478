"""Temporary folders that count as in use while their maker lives, and the removal of those whose maker was killed.

Each holds a file that its maker keeps locked. The kernel lets go of the lock at whatever death, so nothing depends on
process ids, which come again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile

__all__ = ["make_folder", "remove_stale_folders"]

_LOCK = ".lock"


def make_folder(parent: str, prefix: str) -> tuple[str, int]:
    """Makes a folder, for this user alone, that counts as in use until the returned descriptor is closed.

    Args:
        parent: where it is made.
        prefix: how its name begins, which no other kind of folder there has.
    """
    folder = tempfile.mkdtemp(prefix=prefix, dir=parent)
    unlocked = os.path.join(folder, _LOCK + ".new")
    lock = os.open(unlocked, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.rename(unlocked, os.path.join(folder, _LOCK))  # under its name it has never been without the lock
    return folder, lock


def remove_stale_folders(parent: str, prefix: str) -> list[str]:
    """Removes this user's folders that no living process holds, and returns their paths; links are left alone."""
    removed: list[str] = []
    try:
        entries = list(os.scandir(parent))
    except OSError:  # a temporary folder may be writable and yet not readable
        return removed
    for entry in entries:
        if not entry.name.startswith(prefix) or not entry.is_dir(follow_symlinks=False):
            continue
        with contextlib.suppress(OSError):
            if entry.stat(follow_symlinks=False).st_uid != os.geteuid():
                continue
            lock = os.open(os.path.join(entry.path, _LOCK), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while its maker lives
                shutil.rmtree(entry.path, ignore_errors=True)
                removed.append(entry.path)
            finally:
                os.close(lock)
    return removed
