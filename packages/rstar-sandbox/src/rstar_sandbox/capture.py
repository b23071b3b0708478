"""Draining a program's pipes: an exact prefix is kept, the rest is counted and dropped, so memory stays flat."""

from __future__ import annotations

import contextlib
import fcntl
import os

__all__ = ["Capture"]

_CHUNK = 64 * 1024
_PIPE_BYTES = 256 * 1024


class Capture:
    """One stream from a program: its read end, what is kept of it and how much there was.

    Args:
        keep_bytes: length of the prefix that is kept.
        read_end: an open descriptor to read from, without blocking.
    """

    def __init__(self, keep_bytes: int, read_end: int) -> None:
        self.keep_bytes, self.read_end = keep_bytes, read_end
        self.total_bytes = 0
        self._kept = bytearray()
        self._full = False
        self.open = True

    @property
    def content(self) -> bytes:
        """The kept prefix."""
        return bytes(self._kept)

    def ends_with(self, ending: bytes) -> bool:
        """Whether the kept prefix ends so."""
        return self._kept.endswith(ending)

    def take_line(self) -> bytes | None:
        """Takes the first line, with its end, out of what is kept; None while it is not complete."""
        length = self._kept.find(b"\n") + 1
        if not length:
            return None
        line = bytes(self._kept[:length])
        del self._kept[:length]
        self.total_bytes -= length
        return line

    def drain(self) -> bool:
        """Reads once what is there.

        Returns:
            True when something was read; False when nothing is there now, or at the end (then `open` is False).
        """
        if not self.open:
            return False
        try:
            chunk = os.read(self.read_end, _CHUNK)
        except BlockingIOError:
            return False
        except ConnectionResetError:  # a socket whose other end was closed before all was read there
            chunk = b""
        if not chunk:
            self.open = False
            return False
        self.total_bytes += len(chunk)
        room = self.keep_bytes - len(self._kept)
        if room > 0:
            self._kept += chunk[:room]
        elif not self._full:
            self._full = True
            self._enlarge()
        return True

    def _enlarge(self) -> None:
        """Fewer wake-ups for a program that prints much; refused beyond a user's quota, which is harmless."""
        with contextlib.suppress(OSError, AttributeError):
            fcntl.fcntl(self.read_end, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    def drain_rest(self, limit_bytes: int) -> None:
        """Reads to the end, at most `limit_bytes`; for when every writer is dead."""
        stop = self.total_bytes + limit_bytes
        while self.total_bytes < stop and self.drain():
            pass

    def restart(self, keep_bytes: int) -> None:
        """Forgets what was read, for the next cell over the same stream."""
        self.keep_bytes, self.total_bytes = keep_bytes, 0
        self._kept.clear()

    def close(self) -> None:
        """Closes the read end."""
        if self.read_end >= 0:
            os.close(self.read_end)
            self.read_end, self.open = -1, False
