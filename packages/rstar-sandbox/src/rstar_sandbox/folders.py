"""The folder of a zygote, below which programs work, and the removal of those whose zygote was killed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile

__all__ = ["make_folder", "remove_stale_folders"]

_PREFIX = "rstar-sandbox-"
_LOCK = ".lock"


def make_folder(parent: str) -> tuple[str, int]:
    """Makes a folder that counts as in use until the returned descriptor is closed, by whatever death."""
    folder = tempfile.mkdtemp(prefix=_PREFIX, dir=parent)
    lock = os.open(os.path.join(folder, _LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.chmod(folder, 0o711)  # noqa: S103 - children of other users pass through to folders of their own
    return folder, lock


def remove_stale_folders(parent: str) -> list[str]:
    """Removes this user's folders that no living zygote holds, and returns their paths."""
    removed = []
    for entry in os.scandir(parent):
        if not entry.name.startswith(_PREFIX) or not entry.is_dir(follow_symlinks=False):
            continue
        with contextlib.suppress(OSError):
            if entry.stat(follow_symlinks=False).st_uid != os.geteuid():
                continue
            lock = os.open(os.path.join(entry.path, _LOCK), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while its zygote lives
                shutil.rmtree(entry.path, ignore_errors=True)
                removed.append(entry.path)
            finally:
                os.close(lock)
    return removed
