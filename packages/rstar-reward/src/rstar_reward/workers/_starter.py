"""The front's end of the zygote: starting it, asking for forks, and learning how workers ended."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence

from rstar_protos.errors import ServiceUnavailableError
from rstar_reward.workers import _wire

__all__ = ["Zygote"]

_REMEMBERED_EXITS = 256


class Zygote:
    """A running zygote. Made by `start`."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket) -> None:
        self._process, self._control = process, control
        self._exits: dict[int, int] = {}
        self._exit_seen = asyncio.Event()
        self._listener: asyncio.Task[None] | None = None
        self._gone = False

    @classmethod
    async def start(cls, memory_bytes: int, warm: Sequence[str], start_seconds: float) -> Zygote:
        """Starts one by exec and waits until its libraries are imported.

        Raises:
            ServiceUnavailableError: it ended, or was not ready in time.
        """
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "rstar_reward.workers._zygote"]
            command += [str(theirs.fileno()), str(os.getpid()), str(memory_bytes), *warm]
            # Started from the thread of the event loop, which lives as long as the pool: the kernel's
            # die-with-parent request is tied to the thread that started the child.
            process = subprocess.Popen(  # noqa: S603, ASYNC220 - our own module; returns at once
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
            )
        ours.setblocking(False)
        # A second descriptor for the stream: the first one sends sockets along.
        reader, writer = await asyncio.open_connection(sock=ours.dup())
        zygote = cls(process, ours)
        try:
            await asyncio.wait_for(_message(reader), start_seconds)
        except (asyncio.TimeoutError, asyncio.IncompleteReadError, OSError) as error:
            writer.close()
            await zygote.stop()
            raise ServiceUnavailableError(
                f"the zygote of the workers did not start within {start_seconds:g} s (exit code {process.poll()})"
            ) from error
        zygote._listener = asyncio.ensure_future(zygote._listen(reader, writer))
        return zygote

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """False once it has ended."""
        return not self._gone and self._process.poll() is None

    def fork_with(self, connection: socket.socket) -> None:
        """Has it fork a worker that serves on the other end of `connection`.

        Raises:
            OSError: the zygote is gone.
        """
        socket.send_fds(self._control, [b"F"], [connection.fileno()])

    async def exit_signal(self, pid: int, patience_seconds: float) -> int | None:
        """The signal that ended a worker, 0 for an ordinary exit, None when that is not known."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._await_exit(pid), patience_seconds)
        return self._exits.get(pid)

    async def stop(self) -> None:
        """Ends it, and with it its workers."""
        self._gone = True
        if self._listener is not None:
            self._listener.cancel()
        self._control.close()
        self._process.kill()
        # Killed processes end within moments; the loop must not be held up by waiting for it.
        for _ in range(200):
            if self._process.poll() is not None:
                return
            await asyncio.sleep(0.01)

    async def _await_exit(self, pid: int) -> None:
        while pid not in self._exits and not self._gone:
            self._exit_seen.clear()
            await self._exit_seen.wait()

    async def _listen(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                message = await _message(reader)
                self._exits[message["exited"]] = message["signal"]
                if len(self._exits) > _REMEMBERED_EXITS:
                    del self._exits[next(iter(self._exits))]
                self._exit_seen.set()
        except (asyncio.IncompleteReadError, OSError):
            self._gone = True
            self._exit_seen.set()
        finally:
            writer.close()


async def _message(reader: asyncio.StreamReader) -> dict[str, int]:
    header = await reader.readexactly(_wire.HEADER.size)
    message: dict[str, int] = json.loads(await reader.readexactly(_wire.HEADER.unpack(header)[0]))
    return message
