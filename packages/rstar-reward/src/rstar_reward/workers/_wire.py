"""Messages between front, zygote and workers: a four-byte length and JSON, over private sockets."""

from __future__ import annotations

import json
import socket
import struct
from typing import Any

__all__ = ["HEADER", "pack", "receive", "send"]

HEADER = struct.Struct("!I")
_MAX_BYTES = 16 * 1024 * 1024


def pack(message: dict[str, Any]) -> bytes:
    """The bytes of one message."""
    body = json.dumps(message, ensure_ascii=True).encode("ascii")
    return HEADER.pack(len(body)) + body


def send(connection: socket.socket, message: dict[str, Any]) -> None:
    """Sends one message, blocking."""
    connection.sendall(pack(message))


def receive(connection: socket.socket) -> dict[str, Any] | None:
    """Receives one message, blocking; None at the end of the stream."""
    header = _read(connection, HEADER.size)
    if header is None:
        return None
    (length,) = HEADER.unpack(header)
    if length > _MAX_BYTES:
        return None
    body = _read(connection, length)
    if body is None:
        return None
    message = json.loads(body)
    return message if isinstance(message, dict) else None


def _read(connection: socket.socket, length: int) -> bytes | None:
    parts: list[bytes] = []
    while length:
        part = connection.recv(min(length, 1 << 20))
        if not part:
            return None
        parts.append(part)
        length -= len(part)
    return b"".join(parts)
