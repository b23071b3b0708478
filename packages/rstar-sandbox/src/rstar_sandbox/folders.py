"""The folder of a zygote, below which programs work, and the removal of those whose zygote was killed."""

from __future__ import annotations

import os

from rstar_protos import own_folders

__all__ = ["make_folder", "remove_stale_folders"]

_PREFIX = "rstar-sandbox-"


def make_folder(parent: str) -> tuple[str, int]:
    """Makes a folder that counts as in use until the returned descriptor is closed, by whatever death."""
    folder, lock = own_folders.make_folder(parent, _PREFIX)
    os.chmod(folder, 0o711)  # noqa: S103 - children of other users pass through to folders of their own
    return folder, lock


def remove_stale_folders(parent: str) -> list[str]:
    """Removes this user's folders that no living zygote holds, and returns their paths."""
    return own_folders.remove_stale_folders(parent, _PREFIX)
