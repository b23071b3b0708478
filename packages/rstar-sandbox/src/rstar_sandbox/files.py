"""Files in and out of a call's working directory."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

__all__ = ["MAX_COLLECTED_BYTES", "UnusablePathError", "check_relative_path", "collect_files", "write_files"]

MAX_COLLECTED_BYTES = 16 * 1024 * 1024


class UnusablePathError(Exception):
    """A path that cannot be used."""


def check_relative_path(path: str) -> str:
    """The normalised path, when it stays inside the working directory.

    Raises:
        UnusablePathError: empty, absolute, or leading out.
    """
    normal = os.path.normpath(path) if path else ""
    if not normal or "\0" in path or os.path.isabs(normal) or normal == "." or normal.split(os.sep)[0] == "..":
        raise UnusablePathError(f"{path!r} is not a path inside the working directory")
    return normal


def write_files(folder: str, files: dict[str, bytes], user: int | None) -> None:
    """Writes files into a fresh working directory, owned by the program's user.

    Raises:
        UnusablePathError: an unusable path, or one that is a folder for another file.
    """
    for path, content in files.items():
        relative = check_relative_path(path)
        parent = folder
        for part in relative.split(os.sep)[:-1]:
            parent = os.path.join(parent, part)
            try:
                os.mkdir(parent, 0o700)
            except FileExistsError:
                continue
            except OSError as error:
                raise UnusablePathError(f"{path!r}: {error.strerror}") from error
            _own(parent, user)
        target = os.path.join(folder, relative)
        try:
            with open(target, "wb") as file:
                file.write(content)
        except OSError as error:
            raise UnusablePathError(f"{path!r}: {error.strerror}") from error
        _own(target, user)


def collect_files(folder: str, paths: Sequence[str]) -> tuple[dict[str, bytes], list[str]]:
    """Reads files back after every process of the call is dead.

    Returns:
        The contents by path, and what was left out: missing, not a plain file inside, or beyond the size limit.
    """
    found: dict[str, bytes] = {}
    left_out: list[str] = []
    room = MAX_COLLECTED_BYTES
    root = os.path.realpath(folder)
    for path in paths:
        try:
            real = os.path.realpath(os.path.join(root, check_relative_path(path)))
            information = os.lstat(real)
            # A symbolic link may point at any file that the slot can read.
            inside = real.startswith(root + os.sep) and stat.S_ISREG(information.st_mode)
            if not inside or information.st_nlink > 1 or information.st_size > room:
                left_out.append(path)
                continue
            with open(real, "rb") as file:
                found[path] = file.read(room)
        except (OSError, UnusablePathError, ValueError):
            left_out.append(path)
            continue
        room -= len(found[path])
    return found, left_out


def _own(path: str, user: int | None) -> None:
    if user is not None:
        os.chown(path, user, user)
