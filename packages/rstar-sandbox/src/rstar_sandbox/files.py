"""Files in and out of a call's working directory.

Programs of a session may run while files pass, and may put a link wherever a path leads; so paths are walked one
component at a time from an open folder, and no link is followed.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence

__all__ = ["MAX_COLLECTED_BYTES", "UnusablePathError", "check_relative_path", "collect_files", "write_files"]

MAX_COLLECTED_BYTES = 16 * 1024 * 1024

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MAKE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


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
    """Writes files into a working directory, owned by the program's user; a file of that name is replaced.

    Raises:
        UnusablePathError: an unusable path, one that is a folder for another file, or no room.
    """
    for path, content in files.items():
        *parents, name = check_relative_path(path).split(os.sep)
        try:
            with _walk(folder, parents, user, make=True) as parent:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=parent)
                target = os.open(name, _MAKE, 0o600, dir_fd=parent)
                try:
                    view = memoryview(content)
                    while view:
                        view = view[os.write(target, view) :]
                    if user is not None:
                        os.fchown(target, user, user)
                finally:
                    os.close(target)
        except (OSError, ValueError) as error:
            raise UnusablePathError(f"{path!r}: {getattr(error, 'strerror', None) or error}") from error


def collect_files(folder: str, paths: Sequence[str]) -> tuple[dict[str, bytes], list[str]]:
    """Reads files back.

    Returns:
        The contents by path, and what was left out: missing, not a plain file inside, or beyond the size limit.
    """
    found: dict[str, bytes] = {}
    left_out: list[str] = []
    room = MAX_COLLECTED_BYTES
    for path in paths:
        content = _read(folder, path, room)
        if content is None:
            left_out.append(path)
        else:
            found[path] = content
            room -= len(content)
    return found, left_out


def _read(folder: str, path: str, room: int) -> bytes | None:
    try:
        *parents, name = check_relative_path(path).split(os.sep)
        with _walk(folder, parents, None, make=False) as parent:
            descriptor = os.open(name, _READ, dir_fd=parent)
        try:
            information = os.fstat(descriptor)
            # A second name may stand for a file elsewhere.
            if not stat.S_ISREG(information.st_mode) or information.st_nlink > 1 or information.st_size > room:
                return None
            content = bytearray()
            while len(content) < information.st_size:  # a file that grows meanwhile is read as it was
                chunk = os.read(descriptor, information.st_size - len(content))
                if not chunk:
                    break
                content += chunk
            return bytes(content)
        finally:
            os.close(descriptor)
    except (OSError, UnusablePathError, ValueError):
        return None


@contextlib.contextmanager
def _walk(folder: str, parents: Sequence[str], user: int | None, *, make: bool) -> Iterator[int]:
    """An open descriptor of a folder some levels below another."""
    current = os.open(folder, _FOLDER)
    try:
        for part in parents:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, 0o700, dir_fd=current)
                    if user is not None:
                        os.chown(part, user, user, dir_fd=current, follow_symlinks=False)
            below = os.open(part, _FOLDER, dir_fd=current)
            os.close(current)
            current = below
        yield current
    finally:
        os.close(current)
