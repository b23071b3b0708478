"""A worker node: takes calls from a dispatcher, against credits, and answers them from its own slots."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import socket
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import grpc.aio

from rstar_protos.errors import UserInputError, known_as
from rstar_protos.sandbox.v1 import sandbox_pb2, sandbox_pb2_grpc
from rstar_protos.service import ClientSecurity, open_channel
from rstar_protos.service.addresses import parse_endpoint
from rstar_sandbox.dispatcher.link import Pulse, Wake, until_first
from rstar_sandbox.dispatcher.local_node import LocalNode
from rstar_sandbox.dispatcher.worker_service import WORKER_TOKEN_KEY
from rstar_sandbox.executor import Executor, Sessions
from rstar_sandbox.refusals import REFUSALS, Refusal

__all__ = ["Worker", "WorkerSettings"]

_FIRST_SILENCE_SECONDS = 10.0
_LAST_ANSWER_SECONDS = 2.0
_RECONNECT_SECONDS = (0.1, 2.0)
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class WorkerSettings:
    """Where a worker belongs."""

    dispatcher: str
    """Endpoint of the dispatcher: `grpc://host:port`, `grpcs://host:port` or `unix:/path`."""
    security: ClientSecurity
    worker_token: str | None = None
    """The dispatcher's secret for workers, where it has one."""
    name: str = ""
    """For operators, unique; empty: made up from the host name."""

    def checked(self) -> WorkerSettings:
        """Itself, when the endpoint can be used.

        Raises:
            UserInputError: it cannot.
        """
        with known_as({"endpoint": "--dispatcher"}):
            target = parse_endpoint(self.dispatcher)
        if not target.tls and (self.security.ca or self.security.certificate):
            raise UserInputError("--dispatcher", self.dispatcher, "grpcs://host:port, where certificates are given")
        if target.tls:
            self.security.credentials()
        return self


class Worker:
    """Attaches to a dispatcher, again and again, and runs what it sends.

    Args:
        settings: where the dispatcher is.
        executor: runs programs; started by the caller.
        sessions: over the same slots.
    """

    def __init__(self, settings: WorkerSettings, executor: Executor, sessions: Sessions) -> None:
        self.name = settings.name or f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"
        self._settings = settings
        self._executor = executor
        self._sessions = sessions
        self._node = LocalNode(executor, sessions, self.name)
        self._outgoing = sandbox_pb2.AttachRequest()
        self._wake = Wake()
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._attached = False
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def attached(self) -> bool:
        """True while a dispatcher has this worker."""
        return self._attached

    async def run(self) -> None:
        """Works until cancelled."""
        await self._executor.ready()
        delay, most = _RECONNECT_SECONDS
        wait, said = delay, ""
        while not self._draining:
            try:
                async with open_channel(self._settings.dispatcher, self._settings.security) as channel:
                    await self._attach(sandbox_pb2_grpc.SandboxWorkerServiceStub(channel))
            except grpc.aio.AioRpcError as error:
                if (error.details() or "") != said:
                    said = error.details() or ""
                    _log.warning("dispatcher %s: %s %s", self._settings.dispatcher, error.code().name, said)
            finally:
                served, self._attached = self._attached, False
                await self._end_calls()
            if served:
                said = ""
            wait = delay if served else min(2 * wait, most)
            # Workers of a dispatcher that comes back do not all call in the same moment.
            await asyncio.sleep(wait * random.uniform(0.5, 1.5))  # noqa: S311 - no secret depends on it

    async def drain(self, patience_seconds: float) -> None:
        """Takes nothing new and waits for what runs."""
        self._draining = True
        self._outgoing.draining = True
        self._wake()
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._idle.wait(), patience_seconds)
        # The last answers are on their way once the outgoing message has been taken.
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._wake.idle(), _LAST_ANSWER_SECONDS)

    async def _attach(self, stub: sandbox_pb2_grpc.SandboxWorkerServiceStub) -> None:
        token = self._settings.worker_token
        call = stub.Attach(metadata=((WORKER_TOKEN_KEY, token),) if token else None)
        settings = self._executor.settings
        self._outgoing = sandbox_pb2.AttachRequest(
            hello=sandbox_pb2.WorkerHello(
                name=self.name,
                slots=settings.slots,
                max_sessions=settings.max_sessions,
                isolation=self._executor.level,
                version=metadata.version("rstar-sandbox"),
            ),
            credits=settings.slots,
            draining=self._draining,
        )
        self._wake()
        pulse = Pulse(_FIRST_SILENCE_SECONDS)

        async def read() -> None:
            while (message := await call.read()) is not grpc.aio.EOF:
                pulse.heard()
                pulse.silence_seconds = message.silence_seconds or pulse.silence_seconds
                self._attached = True
                for assignment in message.assignments:
                    self._start(assignment)
                for lease in message.cancelled_leases:
                    if lease in self._calls:
                        self._calls[lease].cancel()

        async def write() -> None:
            while True:
                await self._wake.wait(pulse.beat_seconds)
                message, self._outgoing = self._outgoing, sandbox_pb2.AttachRequest()
                await call.write(message)
                self._wake.sent()

        async def listen() -> None:
            await pulse.lost()
            _log.warning("the dispatcher has been silent for %g s", pulse.silence_seconds)

        try:
            await until_first(read(), write(), listen())
        finally:
            call.cancel()

    def _start(self, assignment: sandbox_pb2.Assignment) -> None:
        kind = assignment.WhichOneof("call")
        if kind == "execute":
            work = self._answer(
                assignment.lease, "response", lambda: self._node.execute(assignment.execute, assignment.epoch)
            )
        elif kind == "open_session":
            work = self._answer(assignment.lease, "session", lambda: self._node.open_session(assignment.open_session))
        elif kind == "execute_cell":
            work = self._answer(assignment.lease, "response", lambda: self._node.execute_cell(assignment.execute_cell))
        else:
            work = self._answer(assignment.lease, "closed", lambda: self._node.close_session(assignment.close_session))
        call = asyncio.ensure_future(work)
        self._calls[assignment.lease] = call
        self._idle.clear()
        # Not from within the call: one that is cancelled before its first step never runs.
        call.add_done_callback(lambda _: self._ended(assignment.lease, call, credits=kind == "execute"))

    async def _answer(self, lease: int, field: str, work: Callable[[], Awaitable[Any]]) -> None:
        try:
            result = {field: await work()}
        except REFUSALS as error:
            result = {"refusal": Refusal.of(error).to_proto()}
        except Exception as error:
            _log.exception("a call failed")
            result = {"refusal": Refusal.of(error).to_proto()}
        if self._calls.get(lease) is asyncio.current_task():
            self._outgoing.answers.add(lease=lease, **result)

    def _ended(self, lease: int, call: asyncio.Task[None], credits: int) -> None:
        if self._calls.get(lease) is not call:
            return  # it belonged to a stream that is gone
        del self._calls[lease]
        if not self._calls:
            self._idle.set()
        if not self._draining:
            self._outgoing.credits += credits
        self._wake()

    async def _end_calls(self) -> None:
        """The stream is gone, and with it all leases: what runs under them is killed."""
        calls, self._calls = list(self._calls.values()), {}
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        self._idle.set()
