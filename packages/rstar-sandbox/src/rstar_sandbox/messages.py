"""What passes between the service, its slots and the children: jobs in, outcomes out, framed on a stream socket.

Service and slots run the same interpreter and trust each other, so frames are `marshal`: fast, and no code runs on
reading. What a child sends is not trusted and is JSON (see `report.py`).
"""

from __future__ import annotations

import marshal
import socket
import struct
from dataclasses import dataclass, field
from typing import Any

from rstar_sandbox.limits import Limits

__all__ = ["CANCEL", "CLOSE", "FRAME_HEADER", "Job", "Outcome", "pack", "receive", "send", "unpack"]

FRAME_HEADER = struct.Struct("=Q")
CANCEL = {"kind": "cancel"}
"""Frame to a busy slot: kill the call."""
CLOSE = {"kind": "close"}
"""Frame to an idle slot: end."""


@dataclass(frozen=True)
class Job:
    """One program to run, with complete limits."""

    code: str
    stdin: bytes
    limits: Limits
    files: dict[str, bytes] = field(default_factory=dict)
    """Relative path -> content, written into the working directory before the start."""
    collect: tuple[str, ...] = ()
    """Relative paths of files to bring back."""
    seed: int | None = None
    """Seeds `random` and NumPy's global generator; None: fresh entropy."""

    def frame(self) -> dict[str, Any]:
        """The job as a frame."""
        # Not `asdict`, which copies everything in it.
        return {"kind": "job", **vars(self), "limits": vars(self.limits)}

    @classmethod
    def from_frame(cls, frame: dict[str, Any]) -> Job:
        """The inverse of `frame`."""
        values = {key: value for key, value in frame.items() if key != "kind"}
        return cls(**{**values, "limits": Limits(**values["limits"]), "collect": tuple(values["collect"])})


@dataclass(frozen=True)
class Outcome:
    """How one program ended, seen from outside of it."""

    status: str
    """A value of `rstar_sandbox.status.Status`."""
    stdout: bytes = b""
    stderr: bytes = b""
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    value: str | None = None
    traceback: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    peak_memory_bytes: int = 0
    phases: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Where the time went: "fork", "exec", "drain", "reap" -> wall and CPU seconds; see `Timing` of the contract."""
    forked_ahead: bool = False
    """The child was ready when the job came, so that the fork was not waited for."""
    tier: str = ""
    """The template that the child was forked from: a name of `rstar_sandbox.tiers`."""
    leaked_processes: int = 0
    """Processes that the program left behind, found and killed."""
    isolation: str = ""
    """The level in force."""
    files: dict[str, bytes] = field(default_factory=dict)
    cancelled: bool = False
    """Killed because nobody waits for it any more."""
    state_lost: str = ""
    """Session cells: why the session's state is gone; empty: kept."""
    detail: str = ""
    """For operators; why the call is unavailable, or what was left out."""

    def frame(self) -> dict[str, Any]:
        """The outcome as a frame."""
        return {"kind": "outcome", **vars(self)}

    @classmethod
    def from_frame(cls, frame: dict[str, Any]) -> Outcome:
        """The inverse of `frame`."""
        return cls(**{key: value for key, value in frame.items() if key != "kind"})


def pack(frame: dict[str, Any]) -> bytes:
    """The bytes of one frame: length, then content."""
    content = marshal.dumps(frame)
    return FRAME_HEADER.pack(len(content)) + content


def unpack(content: bytes) -> dict[str, Any]:
    """A frame from its content."""
    frame: dict[str, Any] = marshal.loads(content)  # noqa: S302 - both ends are ours
    return frame


def send(connection: socket.socket, frame: dict[str, Any]) -> None:
    """Sends one frame over a blocking socket."""
    connection.sendall(pack(frame))


def receive(connection: socket.socket) -> dict[str, Any] | None:
    """Receives one frame over a blocking socket; None when the other end is gone."""
    header = _receive_exactly(connection, FRAME_HEADER.size)
    if header is None:
        return None
    content = _receive_exactly(connection, FRAME_HEADER.unpack(header)[0])
    return None if content is None else unpack(content)


def _receive_exactly(connection: socket.socket, count: int) -> bytes | None:
    buffer = bytearray(count)
    view, done = memoryview(buffer), 0
    while done < count:
        try:
            got = connection.recv_into(view[done:])
        except ConnectionResetError:
            return None
        if got == 0:
            return None
        done += got
    return bytes(buffer)
