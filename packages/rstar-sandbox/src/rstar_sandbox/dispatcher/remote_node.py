"""A worker node as the dispatcher sees it: calls out and answers in, over one stream, each call under a lease."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

from rstar_protos.sandbox.v1 import sandbox_pb2
from rstar_sandbox.dispatcher.link import Wake
from rstar_sandbox.nodes import NodeLostError
from rstar_sandbox.refusals import Refusal, RefusedError

__all__ = ["RemoteNode"]


class RemoteNode:
    """One attached worker.

    Args:
        hello: how it introduced itself.
        leases: numbers that this dispatcher never gave before; shared by all nodes.
    """

    remote = True

    def __init__(self, hello: sandbox_pb2.WorkerHello, leases: itertools.count[int]) -> None:
        self.name: str = hello.name
        self.slots: int = hello.slots
        self.max_sessions: int = hello.max_sessions
        self.isolation: str = hello.isolation
        self.stale_answers = 0
        """Answers that nobody waited for any more: their lease had ended."""
        self._leases = leases
        self._waiting: dict[int, asyncio.Future[sandbox_pb2.Answer]] = {}
        self._outgoing = sandbox_pb2.AttachResponse()
        self._wake = Wake()
        self._gone = False

    async def execute(self, request: sandbox_pb2.ExecuteRequest, epoch: int) -> sandbox_pb2.ExecuteResponse:
        """Runs one program."""
        return (await self._call(epoch, execute=request)).response

    async def open_session(self, request: sandbox_pb2.OpenSessionRequest) -> sandbox_pb2.OpenSessionResponse:
        """Opens a session."""
        return (await self._call(1, open_session=request)).session

    async def execute_cell(self, request: sandbox_pb2.ExecuteCellRequest) -> sandbox_pb2.ExecuteResponse:
        """Runs one cell."""
        return (await self._call(1, execute_cell=request)).response

    async def close_session(self, request: sandbox_pb2.CloseSessionRequest) -> sandbox_pb2.CloseSessionResponse:
        """Closes a session."""
        return (await self._call(1, close_session=request)).closed

    def take(self, answers: Any) -> None:
        """Hands answers to those who wait for them."""
        for answer in answers:
            waiter = self._waiting.pop(answer.lease, None)
            if waiter is None or waiter.done():
                self.stale_answers += 1
            else:
                waiter.set_result(answer)

    async def next_message(self, patience_seconds: float) -> sandbox_pb2.AttachResponse:
        """What is to be sent, all that came together in one message; an empty one as a sign of life."""
        await self._wake.wait(patience_seconds)
        message, self._outgoing = self._outgoing, sandbox_pb2.AttachResponse()
        return message

    def lose(self) -> None:
        """The worker is gone: ends all leases."""
        self._gone = True
        for waiter in self._waiting.values():
            if not waiter.done():
                waiter.set_exception(NodeLostError(f"worker {self.name} is gone"))
        self._waiting.clear()

    async def _call(self, epoch: int, **call: Any) -> sandbox_pb2.Answer:
        if self._gone:
            raise NodeLostError(f"worker {self.name} is gone")
        lease = next(self._leases)
        waiter: asyncio.Future[sandbox_pb2.Answer] = asyncio.get_running_loop().create_future()
        self._waiting[lease] = waiter
        self._outgoing.assignments.add(lease=lease, epoch=epoch, **call)
        self._wake()
        try:
            answer = await waiter
        except asyncio.CancelledError:
            if self._waiting.pop(lease, None) is not None:
                self._outgoing.cancelled_leases.append(lease)
                self._wake()
            raise
        if answer.HasField("refusal"):
            raise RefusedError(Refusal.from_proto(answer.refusal))
        return answer
