"""A tier's zygote under supervision, and the slots that were forked from it."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Any

from rstar_sandbox.executor import Counters, SlotLostError
from rstar_sandbox.isolation import Plan
from rstar_sandbox.settings import SandboxSettings
from rstar_sandbox.slot_connection import SlotConnection
from rstar_sandbox.zygote_process import ZygoteProcess

__all__ = ["Template"]

_RESTART_DELAYS = (0.0, 0.1, 0.5, 1.0, 2.0, 5.0)
_STABLE_SECONDS = 10.0


class Template:
    """Keeps one zygote running and hands out its slots.

    Args:
        settings: of the service.
        tier: what the zygote imports.
        counters: of the pool.
        zygote: one that is starting already; None: start one.
        slots: how many slots to make ahead; more are made as they are asked for.
        admit: what has to happen, once, with the first plan before slots are handed out; None: nothing.
    """

    def __init__(
        self,
        settings: SandboxSettings,
        tier: str,
        counters: Counters,
        zygote: ZygoteProcess | None,
        slots: int,
        admit: Callable[[Template], Awaitable[None]] | None = None,
    ) -> None:
        self.plan: Plan | None = None
        self.warmed: tuple[str, ...] = ()
        self._settings, self._tier, self._counters, self._zygote = settings, tier, counters, zygote
        self._slots, self._admit = slots, admit
        self._generation = self._next_slot = 0
        self._idle: collections.deque[SlotConnection] = collections.deque()
        self._connections: dict[int, SlotConnection] = {}
        self._ready = asyncio.Event()
        self._stopping = False

    @property
    def zygote_pid(self) -> int | None:
        """Process id of the current zygote."""
        return self._zygote.pid if self._zygote else None

    @property
    def is_ready(self) -> bool:
        """Whether slots can be had now."""
        return self._ready.is_set()

    async def wait_ready(self) -> None:
        """Returns when slots can be had."""
        await self._ready.wait()

    async def acquire(self) -> SlotConnection:
        """An idle slot, or a new one.

        Raises:
            SlotLostError: the zygote is away.
        """
        while self._idle:
            slot = self._idle.pop()  # the one used last has the warmest caches
            if slot.generation == self._generation and slot.is_open:
                return slot
        try:
            slot = await self.open_slot()
        except OSError as error:
            raise SlotLostError(alone=False) from error
        self._connections[slot.number] = slot
        return slot

    def release(self, slot: SlotConnection) -> None:
        """Takes an idle slot back."""
        if slot.generation == self._generation and slot.number in self._connections and slot.is_open:
            self._idle.append(slot)

    def kill(self, slot: SlotConnection) -> None:
        """Has a slot killed that does not answer; its connection then ends."""
        if self._zygote is not None:
            self._zygote.kill_slot(slot.number)
        slot.abort()  # a zygote that hangs kills nobody

    async def open_slot(self) -> SlotConnection:
        """Makes a slot that is the caller's own.

        Raises:
            OSError: the zygote is away.
        """
        if self._zygote is None or self._stopping:
            raise ConnectionError("no zygote")
        self._next_slot += 1
        number, generation = self._next_slot, self._generation
        connection = self._zygote.ask_for_slot(number)
        slot = SlotConnection(number, self, generation)
        await asyncio.get_running_loop().create_connection(lambda: slot, sock=connection)
        return slot

    async def supervise(self, plan: Plan | None) -> None:
        """Starts the zygote, and again whenever it dies, until cancelled.

        Args:
            plan: the isolation of slots; None: the zygote finds out.
        """
        failures = 0
        while True:
            await asyncio.sleep(_RESTART_DELAYS[min(failures, len(_RESTART_DELAYS) - 1)])
            started = time.monotonic()
            with contextlib.suppress(OSError):
                if self._zygote is None:
                    self._zygote = ZygoteProcess(self._settings, self._tier, plan)
                await self._listen(self._zygote)
            plan = self.plan or plan
            failures = 0 if time.monotonic() - started > _STABLE_SECONDS else failures + 1
            self._ready.clear()
            self._generation += 1
            self._drop_connections()
            await self._end_zygote(kill=True)
            self._counters.zygote_restarts += 1

    async def stop(self) -> None:
        """Ends all slots and the zygote; `supervise` has been cancelled."""
        self._stopping = True
        self._ready.clear()
        self._drop_connections()
        await self._end_zygote(kill=False)

    async def _end_zygote(self, *, kill: bool) -> None:
        zygote, self._zygote = self._zygote, None
        if zygote is None:
            return
        if kill:
            zygote.kill()
        await asyncio.get_running_loop().run_in_executor(None, zygote.stop)

    async def _listen(self, zygote: ZygoteProcess) -> None:
        """Follows the zygote's messages until it is gone."""
        loop = asyncio.get_running_loop()
        preparing: asyncio.Future[None] | None = None
        try:
            while (message := await _next_message(loop, zygote)) is not None:
                if "ready" in message:
                    self.plan, self.warmed = Plan(**message["plan"]), tuple(message["warmed"])
                    preparing = asyncio.ensure_future(self._prepare())
                    preparing.add_done_callback(lambda task: _give_up_on(zygote, task))
                elif "gone" in message:
                    await self._replace(message["gone"])
        finally:
            if preparing is not None:
                preparing.cancel()
                await asyncio.gather(preparing, return_exceptions=True)

    async def _prepare(self) -> None:
        for _ in range(self._slots):
            await self._add_slot()
        if self._admit is not None:
            await self._admit(self)
            self._admit = None
        self._ready.set()

    async def _replace(self, number: int) -> None:
        slot = self._connections.pop(number, None)
        if slot is None:
            return
        if not slot.gone.done():
            slot.gone.set_result(True)
        with contextlib.suppress(ValueError):
            self._idle.remove(slot)
        slot.close()
        self._counters.slots_lost += 1
        if len(self._connections) < self._slots:
            with contextlib.suppress(OSError):
                await self._add_slot()

    async def _add_slot(self) -> None:
        slot = await self.open_slot()
        self._connections[slot.number] = slot
        self.release(slot)

    def _drop_connections(self) -> None:
        for slot in self._connections.values():
            slot.abort()
            if not slot.gone.done():
                slot.gone.set_result(False)
        self._connections.clear()
        self._idle.clear()


def _give_up_on(zygote: ZygoteProcess, preparing: asyncio.Future[None]) -> None:
    """A zygote whose first slots cannot be had is replaced like one that died."""
    if not preparing.cancelled() and preparing.exception() is not None:
        zygote.kill()


async def _next_message(loop: asyncio.AbstractEventLoop, zygote: ZygoteProcess) -> dict[str, Any] | None:
    while True:
        try:
            return zygote.read_message()
        except BlockingIOError:
            await _readable(loop, zygote.control.fileno())


async def _readable(loop: asyncio.AbstractEventLoop, descriptor: int) -> None:
    future: asyncio.Future[None] = loop.create_future()
    # One expression, used twice.
    notify: Callable[[], None] = lambda: None if future.done() else future.set_result(None)  # noqa: E731
    loop.add_reader(descriptor, notify)
    try:
        await future
    finally:
        loop.remove_reader(descriptor)
