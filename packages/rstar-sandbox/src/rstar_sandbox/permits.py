"""How many programs run at the same time: permits, given in the order in which they are asked for."""

from __future__ import annotations

import asyncio
import collections

from rstar_sandbox.executor import SlotLostError

__all__ = ["Permits"]


class Permits:
    """A semaphore whose waiters can be counted and turned away.

    Args:
        count: how many there are.
    """

    def __init__(self, count: int) -> None:
        self.free = count
        self.waiting = 0
        """How many wait."""
        self._waiters: collections.deque[asyncio.Future[None]] = collections.deque()
        self._closed = False

    async def acquire(self) -> None:
        """Returns when there is a permit for the caller.

        Raises:
            SlotLostError: the pool ends.
        """
        if self._closed:
            raise SlotLostError(alone=False)
        if self.free > 0:
            self.free -= 1
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self.waiting += 1
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self.release()  # it was given just now
            raise
        finally:
            self.waiting -= 1

    def release(self) -> None:
        """Gives a permit to whoever waits longest."""
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self.free += 1

    def close(self) -> None:
        """Turns away all who wait."""
        self._closed = True
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(SlotLostError(alone=False))
        self._waiters.clear()
