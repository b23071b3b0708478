"""The services that one job uses: embedded ones that start and end together, others elsewhere, and channels to both."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

import grpc.aio

from rstar_protos.errors import ServiceUnavailableError
from rstar_protos.service.client import open_channel
from rstar_protos.service.embedded import EmbeddedService
from rstar_protos.service.security import ClientSecurity

__all__ = ["EmbeddedGroup"]


class EmbeddedGroup:
    """Embedded services by name, on one event loop; `close` ends them and all channels.

    Args:
        log_dir: folder for the logs of the services.
        on_restart: told the name of a service and how often it was restarted; called on the event loop.
    """

    def __init__(self, log_dir: Path, on_restart: Callable[[str, int], None] | None = None) -> None:
        self._log_dir = log_dir
        self._on_restart = on_restart
        self._loop = asyncio.get_running_loop()
        self._children: dict[str, EmbeddedService] = {}
        self._channels: list[grpc.aio.Channel] = []
        self._failure: asyncio.Future[str] = self._loop.create_future()

    def add(self, name: str, command: Sequence[str], *, env: Mapping[str, str] | None = None) -> str:
        """Adds a service that `start` will start, and returns its endpoint.

        Args:
            name: for messages, log file and socket.
            command: module and arguments, for `python -m`.
            env: environment variables added to this process's.
        """
        child = EmbeddedService(
            name,
            [sys.executable, "-m", *command],
            env=env,
            log_path=self._log_dir / f"{name}.log",
            # Both come from the child's monitor thread.
            on_restart=lambda count: self._tell(self._restarted, name, count),
            on_failure=lambda reason: self._tell(self._failed, reason),
        )
        self._children[name] = child
        return child.endpoint

    async def start(self) -> None:
        """Starts all that was added, at once.

        Raises:
            UserInputError: a service refused its input.
            ServiceUnavailableError: one did not get ready.
        """
        await asyncio.gather(*(asyncio.to_thread(child.start) for child in self._children.values()))

    def open(self, endpoint: str, security: ClientSecurity | None = None) -> grpc.aio.Channel:
        """A channel that ends with the group, to a service of it or elsewhere."""
        channel = open_channel(endpoint, security)
        self._channels.append(channel)
        return channel

    @property
    def pids(self) -> dict[str, int]:
        """Process ids by name."""
        return {name: child.pid for name, child in self._children.items() if child.pid}

    @property
    def failure(self) -> str | None:
        """Why a service was given up; None while all are well."""
        return self._failure.result() if self._failure.done() else None

    async def failed(self) -> NoReturn:
        """Waits for ever, or until a service is given up.

        Raises:
            ServiceUnavailableError: it could not be restarted; with the reason.
        """
        # Shielded: a waiter that is cancelled must not cancel what others wait for.
        raise ServiceUnavailableError(await asyncio.shield(self._failure))

    async def close(self) -> None:
        """Closes the channels and ends the services."""
        for channel in self._channels:
            await channel.close()
        await asyncio.gather(*(asyncio.to_thread(child.stop) for child in self._children.values()))

    def _tell(self, handler: Callable[..., None], *arguments: object) -> None:
        self._loop.call_soon_threadsafe(handler, *arguments)

    def _restarted(self, name: str, count: int) -> None:
        if self._on_restart is not None:
            self._on_restart(name, count)

    def _failed(self, reason: str) -> None:
        if not self._failure.done():
            self._failure.set_result(reason)
