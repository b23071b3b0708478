"""The pool: a zygote, its slots, and the queue in front of them. Knows nothing of gRPC.

Every job is answered exactly once. A slot or zygote that dies under a job is the infrastructure's fault: the job
runs again on another slot, and only when that fails repeatedly is it answered as unavailable.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rstar_sandbox.executor import Counters, Placed, PoolFullError, SlotLostError
from rstar_sandbox.isolation import Plan
from rstar_sandbox.messages import CANCEL, CLOSE, FRAME_HEADER, Job, Outcome, pack, unpack
from rstar_sandbox.settings import SandboxSettings
from rstar_sandbox.zygote_process import ZygoteProcess

__all__ = ["SlotConnection", "WorkerPool"]

_ATTEMPTS = 3
_ANSWER_GRACE_SECONDS = 15.0
_CANCEL_SECONDS = 10.0
_RESTART_DELAYS = (0.0, 0.1, 0.5, 1.0, 2.0, 5.0)
_STABLE_SECONDS = 10.0
_DEATH_NOTICE_SECONDS = 2.0


@dataclass(eq=False)
class SlotConnection:
    """The service's end of one slot."""

    number: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    gone: asyncio.Future[bool] = field(repr=False)
    """Done when the slot has ended: True when the zygote lives on and says so."""
    generation: int

    async def exchange(self, frame: dict[str, Any]) -> dict[str, Any] | None:
        """Sends a frame and waits for the answer; None when the slot is gone."""
        try:
            self.writer.write(pack(frame))
            await self.writer.drain()
            return await self.answer()
        except (ConnectionError, OSError):
            return None

    async def answer(self) -> dict[str, Any] | None:
        """The slot's next frame; None when the slot is gone."""
        try:
            header = await self.reader.readexactly(FRAME_HEADER.size)
            return unpack(await self.reader.readexactly(FRAME_HEADER.unpack(header)[0]))
        except (asyncio.IncompleteReadError, ConnectionError, OSError):
            return None

    def tell(self, frame: dict[str, Any]) -> None:
        """Sends a frame that has no answer of its own."""
        with contextlib.suppress(ConnectionError, OSError):
            self.writer.write(pack(frame))


class WorkerPool:
    """Runs jobs on slots.

    Args:
        settings: of the service.
        zygote: one that is starting already; None: start one.
    """

    def __init__(self, settings: SandboxSettings, zygote: ZygoteProcess | None = None) -> None:
        self.settings = settings
        self.plan = Plan()
        self.warmed: tuple[str, ...] = ()
        self.running = 0
        self.counters = Counters()
        self._zygote = zygote
        self._generation = 0
        self._next_slot = 0
        self._idle: collections.deque[SlotConnection] = collections.deque()
        self._waiting: collections.deque[asyncio.Future[SlotConnection]] = collections.deque()
        self._connections: dict[int, SlotConnection] = {}
        self._ready = asyncio.Event()
        self._stopping = False
        self._supervisor: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._mean_seconds = 0.1

    @property
    def level(self) -> str:
        """The isolation level in force."""
        return self.plan.level

    @property
    def queued(self) -> int:
        """Jobs that wait for a slot."""
        return sum(not future.done() for future in self._waiting)

    @property
    def zygote_pid(self) -> int | None:
        """Process id of the current zygote."""
        return self._zygote.pid if self._zygote else None

    def start(self) -> None:
        """Starts what runs in the background; jobs wait until the first slots are there."""
        self._supervisor = asyncio.ensure_future(self._supervise())

    async def ready(self) -> None:
        """Returns when slots are there."""
        await self._ready.wait()

    async def stop(self) -> None:
        """Ends all slots and the zygote; jobs that run or wait are answered as unavailable."""
        self._stopping = True
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._drop_connections()
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(SlotLostError(alone=False))
        if self._zygote is not None:
            await asyncio.get_running_loop().run_in_executor(None, self._zygote.stop)

    async def run(self, job: Job, *, wait_for_room: bool = False) -> Placed:
        """Runs one job to its outcome.

        Args:
            job: with complete limits.
            wait_for_room: for callers that bound what they have in flight themselves.

        Raises:
            PoolFullError: no room in the queue.
        """
        queue_seconds, lost_alone, arrived = 0.0, 0, time.monotonic()
        for attempt in range(_ATTEMPTS):
            started_waiting = time.monotonic()
            try:
                slot = await self._acquire(wait_for_room or attempt > 0)
            except (SlotLostError, asyncio.TimeoutError):
                break
            queue_seconds += time.monotonic() - started_waiting
            try:
                return Placed(await self._run_on(slot, job), queue_seconds)
            except SlotLostError as lost:
                lost_alone += lost.alone
                self.counters.retries += 1
        if lost_alone == _ATTEMPTS and not self.plan.shields_supervisor:
            # On this machine a program can kill its slot; that it happens every time is the program's doing.
            return Placed(Outcome("crashed", signal=9, detail="the slot died with the program"), queue_seconds)
        detail = f"no worker could run the program to its end within {time.monotonic() - arrived:.1f} s"
        return Placed(Outcome("unavailable", detail=detail), queue_seconds)

    async def lease(self) -> SlotConnection:
        """A slot made for a session, outside of the pool; give it back with `end_lease`.

        Raises:
            SlotLostError: no slot can be made.
        """
        try:
            await asyncio.wait_for(self._ready.wait(), self.settings.patience_seconds)
            return await self._open_slot()
        except (OSError, asyncio.TimeoutError) as error:
            raise SlotLostError(alone=False) from error

    def end_lease(self, slot: SlotConnection) -> None:
        """Ends a session's slot."""
        slot.tell(CLOSE)
        slot.writer.close()

    async def _run_on(self, slot: SlotConnection, job: Job) -> Outcome:
        started = time.monotonic()
        # A task of its own: a cancelled reader would leave half a frame behind.
        exchange = asyncio.ensure_future(slot.exchange(job.frame()))
        self.running += 1
        try:
            done, _ = await asyncio.wait({exchange}, timeout=job.limits.wall_seconds + _ANSWER_GRACE_SECONDS)
        except asyncio.CancelledError:
            self._background(self._cancel(slot, exchange))
            raise
        finally:
            self.running -= 1
        if not done:
            self._kill(slot)
        frame = await exchange
        if frame is None:
            raise SlotLostError(alone=await self._died_alone(slot))
        self._release(slot)
        self._mean_seconds += 0.05 * (time.monotonic() - started - self._mean_seconds)
        return Outcome.from_frame(frame)

    async def _cancel(self, slot: SlotConnection, exchange: asyncio.Future[dict[str, Any] | None]) -> None:
        """Has the running program killed, and takes the slot back when it is."""
        slot.tell(CANCEL)
        done, _ = await asyncio.wait({exchange}, timeout=_CANCEL_SECONDS)
        if not done:
            self._kill(slot)
        if await exchange is not None:
            self._release(slot)

    def _kill(self, slot: SlotConnection) -> None:
        """Has a slot killed that does not answer; its connection then ends."""
        if self._zygote is not None:
            self._zygote.kill_slot(slot.number)
        slot.writer.close()

    async def _died_alone(self, slot: SlotConnection) -> bool:
        """Whether the zygote outlived the slot and says so."""
        done, _ = await asyncio.wait({slot.gone}, timeout=_DEATH_NOTICE_SECONDS)
        return bool(done) and slot.gone.result()

    async def _acquire(self, wait_for_room: bool) -> SlotConnection:
        while self._idle:
            slot = self._idle.popleft()
            if slot.generation == self._generation and not slot.reader.at_eof():
                return slot
        if self._stopping:
            raise SlotLostError(alone=False)
        # While the slots are being made, those whom they will take at once are no queue yet.
        coming = 0 if self._ready.is_set() else self.settings.slots
        if not wait_for_room and self.queued >= self.settings.queue_limit + coming:
            raise PoolFullError(self._retry_after())
        waiter: asyncio.Future[SlotConnection] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            while True:
                done, _ = await asyncio.wait({waiter}, timeout=self.settings.patience_seconds)
                if done:
                    return waiter.result()
                if not self._ready.is_set():
                    raise asyncio.TimeoutError
        except BaseException:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._release(waiter.result())
            waiter.cancel()
            raise

    def _retry_after(self) -> float:
        """About when the queue will have moved on by a good part."""
        rate = self.settings.slots / max(self._mean_seconds, 0.001)
        return min(10.0, max(0.05, self.settings.queue_limit / 4 / rate))

    def _release(self, slot: SlotConnection) -> None:
        if slot.generation != self._generation or slot.number not in self._connections or slot.reader.at_eof():
            return
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(slot)
                return
        self._idle.append(slot)

    # The zygote and its slots

    async def _supervise(self) -> None:
        failures = 0
        while not self._stopping:
            await asyncio.sleep(_RESTART_DELAYS[min(failures, len(_RESTART_DELAYS) - 1)])
            started = time.monotonic()
            try:
                if self._zygote is None:
                    self._zygote = ZygoteProcess(self.settings)
                await self._listen(self._zygote)
            except OSError:
                pass
            failures = 0 if time.monotonic() - started > _STABLE_SECONDS else failures + 1
            self._ready.clear()
            self._generation += 1
            self._drop_connections()
            if self._zygote is not None:
                self._zygote.kill()
                await asyncio.get_running_loop().run_in_executor(None, self._zygote.stop)
                self._zygote = None
            self.counters.zygote_restarts += 1

    async def _listen(self, zygote: ZygoteProcess) -> None:
        """Follows the zygote's messages until it is gone."""
        loop = asyncio.get_running_loop()
        while True:
            message = await _next_message(loop, zygote)
            if message is None:
                return
            if "ready" in message:
                self.plan, self.warmed = Plan(**message["plan"]), tuple(message["warmed"])
                for _ in range(self.settings.slots):
                    await self._add_slot()
                self._ready.set()
            elif "gone" in message:
                await self._replace(message["gone"])

    async def _replace(self, number: int) -> None:
        slot = self._connections.pop(number, None)
        if slot is None:
            return
        if not slot.gone.done():
            slot.gone.set_result(True)
        with contextlib.suppress(ValueError):
            self._idle.remove(slot)
        slot.writer.close()
        self.counters.slots_lost += 1
        await self._add_slot()

    async def _add_slot(self) -> None:
        slot = await self._open_slot()
        self._connections[slot.number] = slot
        self._release(slot)

    async def _open_slot(self) -> SlotConnection:
        if self._zygote is None:
            raise ConnectionError("no zygote")
        self._next_slot += 1
        number, generation = self._next_slot, self._generation
        connection = self._zygote.ask_for_slot(number)
        reader, writer = await asyncio.open_connection(sock=connection)
        gone: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        return SlotConnection(number, reader, writer, gone, generation)

    def _drop_connections(self) -> None:
        for slot in self._connections.values():
            slot.writer.close()
            if not slot.gone.done():
                slot.gone.set_result(False)
        self._connections.clear()
        self._idle.clear()

    def _background(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


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
