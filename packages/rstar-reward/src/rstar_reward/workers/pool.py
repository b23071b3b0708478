"""The pool: single-threaded workers forked from a warm zygote, each killed without touching its neighbours.

Lives in one event loop. A worker that was killed, crashed or retired is replaced at once, so the pool returns to its
full size by itself; a zygote that died is started again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from rstar_protos.errors import ServiceUnavailableError
from rstar_reward.workers import _wire
from rstar_reward.workers._starter import Zygote

__all__ = ["PoolSettings", "Reply", "ReplyKind", "WorkerPool", "available_cpus"]


def available_cpus() -> int:
    """How many CPUs this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not Linux
        return os.cpu_count() or 1


@dataclass(frozen=True)
class PoolSettings:
    """Size and limits of a pool."""

    workers: int = field(default_factory=available_cpus)
    deadline_seconds: float = 2.0
    """After this, of CPU or of wall-clock time, a worker gives up by itself."""
    kill_seconds: float = 3.0
    """After this it is killed: a long call into C does not let it give up."""
    busy_patience: float = 10.0
    """Where the machine gave a worker too little CPU, a second attempt gets this many times the wall-clock time."""
    memory_bytes: int = 1_200_000_000
    """Address space of one worker."""
    start_seconds: float = 150.0
    """How long a zygote may take to import its libraries."""
    warm: tuple[str, ...] = ("math",)
    """Verifiers that the zygote warms up."""


class ReplyKind(Enum):
    """How a job ended."""

    DONE = "done"
    TIMEOUT = "timeout"
    STARVED = "starved"
    """The time ran out, but the machine gave the worker less than a quarter of it."""
    MEMORY = "memory"
    """The worker ran into its memory limit."""
    RECURSION = "recursion"
    ERROR = "error"
    """A library raised."""
    FAULT = "fault"
    """The worker died of a fault of its own: a segmentation fault, an abort."""
    LOST = "lost"
    """The worker was taken away: killed from outside, or its zygote ended."""


@dataclass(frozen=True)
class Reply:
    """The end of one job."""

    kind: ReplyKind
    body: dict[str, Any] = field(default_factory=dict)
    gold_problem: str | None = None
    """What the worker found about the reference answer before it went on: "" for nothing wrong, None if it did not get
    that far or was not asked."""


_FAULTS = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGXCPU})
_EXIT_REPORT_SECONDS = 0.5
_FAIR_SHARE = 0.25


class _Worker:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pid: int, zygote: Zygote) -> None:
        self.reader, self.writer, self.pid, self.zygote = reader, writer, pid, zygote
        # CPU time that it had used when its last job ended.
        self.cpu_seconds = 0.0
        self.pidfd = os.pidfd_open(pid) if hasattr(os, "pidfd_open") else -1

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            if self.pidfd >= 0:
                # By descriptor, not number: the number may belong to somebody else by now.
                signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
            else:
                os.kill(self.pid, signal.SIGKILL)

    def dispose(self) -> None:
        self.kill()
        self.writer.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


@dataclass
class _Progress:
    """What a worker has told about a job that has not ended."""

    gold_problem: str | None = None


def _timed_out(cpu_seconds: float, deadline: float) -> ReplyKind:
    """Blames the job only for time that it was given: a comparison that ends at all ends in a fraction of this."""
    return ReplyKind.TIMEOUT if cpu_seconds >= deadline * _FAIR_SHARE else ReplyKind.STARVED


def _cpu_seconds(pid: int) -> float:
    """CPU time of a process so far; 0 where that cannot be known."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            fields = stat.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return 0.0


class WorkerPool:
    """Runs jobs in worker processes.

    Args:
        settings: size and limits.
    """

    def __init__(self, settings: PoolSettings | None = None) -> None:
        self.settings = settings or PoolSettings()
        self.replaced = 0
        """Workers replaced so far, for whatever reason."""
        self._idle: asyncio.Queue[_Worker] = asyncio.Queue()
        self._workers: set[_Worker] = set()
        self._zygote: Zygote | None = None
        self._zygote_lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._closed = False
        self._fault: str | None = None

    async def start(self) -> None:
        """Starts the zygote and all workers.

        Raises:
            ServiceUnavailableError: they cannot be started.
        """
        await asyncio.gather(*(self._add_worker() for _ in range(self.settings.workers)))

    async def close(self) -> None:
        """Ends all workers and the zygote."""
        self._closed = True
        for task in list(self._tasks):
            task.cancel()
        for worker in list(self._workers):
            worker.dispose()
        self._workers.clear()
        if self._zygote is not None:
            await self._zygote.stop()

    @property
    def worker_pids(self) -> Sequence[int]:
        """Process ids of the living workers."""
        return [worker.pid for worker in self._workers]

    @property
    def zygote_pid(self) -> int | None:
        """Process id of the zygote."""
        return self._zygote.pid if self._zygote else None

    async def run(self, job: dict[str, Any], patience: float = 1.0, *, proven: bool = False) -> Reply:
        """Runs one job; waits for an idle worker first, which does not count against its deadline.

        Args:
            job: what the worker is to do.
            patience: multiplies the wall-clock limits; that on CPU time stays.
            proven: asks the worker for a sign of life first. Where something kills one worker after the other, the
                job is lost only if its own worker is killed.

        Raises:
            ServiceUnavailableError: no worker can be started.
        """
        worker = await (self._take_proven() if proven else self._take())
        progress, usable = _Progress(), False
        deadline = self.settings.deadline_seconds
        limits = {"cpu_seconds": deadline, "wall_seconds": deadline * patience}
        exchange = asyncio.ensure_future(self._exchange(worker, {**job, **limits}, progress))
        try:
            reply = await self._ended(exchange, worker, patience)
            kind = reply.kind
            usable = kind not in (ReplyKind.LOST, ReplyKind.FAULT) and not reply.body.get("last", True)
            if kind is ReplyKind.TIMEOUT:
                kind = _timed_out(reply.body.get("cpu_seconds", deadline), deadline)
            return Reply(kind, reply.body, progress.gold_problem)
        finally:
            # A cancelled job leaves its worker in the middle of something.
            exchange.cancel()
            if usable:
                self._idle.put_nowait(worker)
            else:
                self._retire(worker)

    async def _ended(self, exchange: asyncio.Future[Reply], worker: _Worker, patience: float) -> Reply:
        """The reply, or a timeout when the worker has used its CPU time, or wall-clock time, and does not give up."""
        clock = asyncio.get_running_loop().time
        kill = self.settings.kill_seconds
        give_up = clock() + kill * patience
        while True:
            done, _ = await asyncio.wait({exchange}, timeout=min(kill, max(give_up - clock(), 0.0)))
            if done:
                return exchange.result()
            used = _cpu_seconds(worker.pid) - worker.cpu_seconds
            if used >= kill or clock() >= give_up:
                return Reply(ReplyKind.TIMEOUT, {"cpu_seconds": used})

    async def _take(self) -> _Worker:
        while True:
            if self._closed:
                raise ServiceUnavailableError("the worker pool is closed")
            if self._fault is not None and self._idle.empty():
                raise ServiceUnavailableError(self._fault)
            try:
                worker = self._idle.get_nowait()
            except asyncio.QueueEmpty:
                try:
                    worker = await asyncio.wait_for(self._idle.get(), 0.5)
                except asyncio.TimeoutError:
                    continue
            if worker.reader.at_eof() or not worker.zygote.alive:
                # Killed while it was idle, or about to be, as all workers of a zygote that ended: nothing was lost.
                self._retire(worker)
                continue
            return worker

    async def _take_proven(self) -> _Worker:
        while True:
            worker, alive = await self._take(), False
            try:
                reply = await self._exchange(worker, {"ping": True}, _Progress())
                alive = reply.kind is ReplyKind.DONE
            finally:
                if not alive:
                    self._retire(worker)
            if alive:
                return worker

    async def _exchange(self, worker: _Worker, job: dict[str, Any], progress: _Progress) -> Reply:
        try:
            worker.writer.write(_wire.pack(job))
            await worker.writer.drain()
            while True:
                header = await worker.reader.readexactly(_wire.HEADER.size)
                body = json.loads(await worker.reader.readexactly(_wire.HEADER.unpack(header)[0]))
                if body["kind"] != "gold":
                    worker.cpu_seconds = body.get("cpu_total", worker.cpu_seconds)
                    return Reply(ReplyKind(body["kind"]), body)
                progress.gold_problem = body["problem"]
        except (OSError, asyncio.IncompleteReadError):
            number = await worker.zygote.exit_signal(worker.pid, _EXIT_REPORT_SECONDS)
            kind = ReplyKind.FAULT if number in _FAULTS else ReplyKind.LOST
            return Reply(kind, {"signal": number})

    def _retire(self, worker: _Worker) -> None:
        self._workers.discard(worker)
        worker.dispose()
        if self._closed:
            return
        self.replaced += 1
        task = asyncio.ensure_future(self._replace())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _replace(self) -> None:
        delay = 0.05
        while not self._closed:
            try:
                await self._add_worker()
            except (OSError, ServiceUnavailableError, asyncio.IncompleteReadError) as error:
                # Jobs fail at once with this reason until a worker can be started again.
                self._fault = f"no worker can be started: {error}"
                await asyncio.sleep(delay)
                delay = min(delay * 2, 5.0)
            else:
                return

    async def _add_worker(self) -> None:
        zygote = await self._living_zygote()
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            with theirs:
                zygote.fork_with(theirs)
            reader, writer = await asyncio.open_connection(sock=ours)
        except BaseException:
            ours.close()
            raise
        try:
            header = await asyncio.wait_for(reader.readexactly(_wire.HEADER.size), self.settings.start_seconds)
            hello = json.loads(await reader.readexactly(_wire.HEADER.unpack(header)[0]))
            worker = _Worker(reader, writer, hello["pid"], zygote)
        except BaseException:
            writer.close()
            raise
        self._workers.add(worker)
        self._fault = None
        self._idle.put_nowait(worker)

    async def _living_zygote(self) -> Zygote:
        async with self._zygote_lock:
            if self._zygote is None or not self._zygote.alive:
                if self._zygote is not None:
                    await self._zygote.stop()
                self._zygote = await Zygote.start(
                    self.settings.memory_bytes, self.settings.warm, self.settings.start_seconds
                )
            return self._zygote
