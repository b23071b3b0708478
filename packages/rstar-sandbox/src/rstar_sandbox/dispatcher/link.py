"""The stream between a dispatcher and a worker, as both ends see it: several tasks that end together, and a pulse."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

__all__ = ["Pulse", "Wake", "until_first"]

_BEATS = 4


class Pulse:
    """When the other end was last heard of."""

    def __init__(self, silence_seconds: float) -> None:
        self.silence_seconds = silence_seconds
        """Who says nothing for longer counts as gone."""
        self._loop = asyncio.get_running_loop()
        self._heard = self._loop.time()

    @property
    def beat_seconds(self) -> float:
        """How long we may say nothing ourselves."""
        return self.silence_seconds / _BEATS

    def heard(self) -> None:
        """A message came."""
        self._heard = self._loop.time()

    async def lost(self) -> None:
        """Returns when the other end has been silent for too long."""
        left = self.silence_seconds
        while left > 0:
            await asyncio.sleep(left)
            left = self._heard + self.silence_seconds - self._loop.time()


class Wake:
    """Tells a writer that there is something to send, or that it is time for a sign of life."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._taken = asyncio.Event()

    def __call__(self) -> None:
        """There is something to send."""
        self._event.set()
        self._taken.clear()

    async def wait(self, patience_seconds: float) -> None:
        """Returns at the next call, or after the patience."""
        handle = asyncio.get_running_loop().call_later(patience_seconds, self._event.set)
        try:
            await self._event.wait()
        finally:
            handle.cancel()
        self._event.clear()

    def sent(self) -> None:
        """What had been there at the last `wait` is on its way."""
        if not self._event.is_set():
            self._taken.set()

    async def idle(self) -> None:
        """Returns when nothing is left to send."""
        if self._event.is_set():
            await self._taken.wait()


async def until_first(*works: Coroutine[Any, Any, None]) -> None:
    """Runs all until the first of them ends, and ends the others; raises what that one raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
