"""Results by request id: a retry never runs a program twice, and a second caller joins the first.

What is running is shared by all callers with the same id and cancelled when the last of them is gone.
"""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["DifferentRequestError", "RememberedResults"]

Result = TypeVar("Result")


class DifferentRequestError(Exception):
    """A request id was used again for another request."""


@dataclass
class _Running(Generic[Result]):
    fingerprint: bytes
    task: asyncio.Task[Result]
    callers: int = 0


class RememberedResults(Generic[Result]):
    """Joins running work and remembers finished work.

    Args:
        max_results: how many results are kept.
        max_bytes: how much their sizes may add up to.
        size: of a result, bytes.
        keep: whether a result is worth remembering (an infrastructure fault is not: a retry shall try again).
    """

    def __init__(
        self, max_results: int, max_bytes: int, size: Callable[[Result], int], keep: Callable[[Result], bool]
    ) -> None:
        self._max_results, self._max_bytes = max_results, max_bytes
        self._size, self._keep = size, keep
        self._running: dict[str, _Running[Result]] = {}
        self._finished: collections.OrderedDict[str, tuple[bytes, Result, int]] = collections.OrderedDict()
        self._bytes = 0

    async def answer(self, key: str, fingerprint: bytes, work: Callable[[], Awaitable[Result]]) -> Result:
        """The remembered result, the one being made, or a new one.

        Args:
            key: the request id; empty: nothing is remembered.
            fingerprint: tells different requests apart.
            work: makes the result.

        Raises:
            DifferentRequestError: the id belongs to another request.
        """
        if not key:
            return await work()
        finished = self._finished.get(key)
        if finished is not None:
            _check_same(finished[0], fingerprint)
            self._finished.move_to_end(key)
            return finished[1]
        running = self._running.get(key)
        if running is None:
            running = _Running(fingerprint, asyncio.ensure_future(_awaited(work)))
            self._running[key] = running
            running.task.add_done_callback(lambda task: self._finish(key, fingerprint, task))
        _check_same(running.fingerprint, fingerprint)
        running.callers += 1
        try:
            return await asyncio.shield(running.task)
        finally:
            running.callers -= 1
            if running.callers == 0 and not running.task.done():
                running.task.cancel()
                # Whoever comes with this id now starts anew instead of joining what is being killed.
                if self._running.get(key) is running:
                    del self._running[key]

    def _finish(self, key: str, fingerprint: bytes, task: asyncio.Task[Result]) -> None:
        running = self._running.get(key)
        if running is not None and running.task is task:
            del self._running[key]
        if task.cancelled() or task.exception() is not None or not self._keep(task.result()):
            return
        size = self._size(task.result())
        if size > self._max_bytes or self._max_results < 1 or key in self._finished:
            return
        self._finished[key] = (fingerprint, task.result(), size)
        self._bytes += size
        while len(self._finished) > self._max_results or self._bytes > self._max_bytes:
            self._bytes -= self._finished.popitem(last=False)[1][2]


async def _awaited(work: Callable[[], Awaitable[Result]]) -> Result:
    return await work()


def _check_same(known: bytes, given: bytes) -> None:
    if known != given:
        raise DifferentRequestError
