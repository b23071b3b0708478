"""SandboxService over gRPC: a thin shell around the front."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio

from rstar_protos.errors import UserInputError
from rstar_protos.sandbox.v1 import sandbox_pb2, sandbox_pb2_grpc
from rstar_sandbox.client import CLIENT_KEY
from rstar_sandbox.front import Front
from rstar_sandbox.refusals import REFUSALS, refuse

__all__ = ["SandboxServicer"]

Request = sandbox_pb2.ExecuteRequest
Response = sandbox_pb2.ExecuteResponse
Context = grpc.aio.ServicerContext[Any, Any]

_IN_FLIGHT_PER_SLOT = 4
_LEAST_IN_FLIGHT = 16


class SandboxServicer(sandbox_pb2_grpc.SandboxServiceServicer):
    """Answers the calls of SandboxService."""

    def __init__(self, front: Front) -> None:
        self._front = front

    async def Execute(self, request: Request, context: Context) -> Response:
        """Runs one program."""
        try:
            return await self._front.execute(request, _client_of(context))
        except REFUSALS as error:
            await refuse(context, error)

    async def ExecuteMany(self, request_iterator: AsyncIterator[Request], context: Context) -> AsyncIterator[Response]:
        """Runs many programs; results as they finish. Reads no further than it can run: that is the back-pressure."""
        client = _client_of(context)
        in_flight = max(_LEAST_IN_FLIGHT, _IN_FLIGHT_PER_SLOT * self._front.dispatcher.slots)
        room = asyncio.Semaphore(in_flight)
        results: asyncio.Queue[Response | BaseException | None] = asyncio.Queue()
        tasks: set[asyncio.Task[None]] = set()

        async def run(request: Request) -> None:
            try:
                results.put_nowait(await self._front.execute(request, client, wait_for_room=True))
            except Exception as error:
                results.put_nowait(error)
            finally:
                room.release()

        async def read() -> None:
            try:
                async for request in request_iterator:
                    if not request.request_id:
                        raise UserInputError(
                            "request_id", "", "a text that tells its result apart from others of the stream"
                        )
                    await room.acquire()
                    task = asyncio.ensure_future(run(request))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                while tasks:
                    await asyncio.wait(tasks)
                results.put_nowait(None)
            except Exception as error:
                results.put_nowait(error)

        reader = asyncio.ensure_future(read())
        try:
            while (result := await results.get()) is not None:
                if isinstance(result, BaseException):
                    await refuse(context, result)
                yield result
        finally:
            reader.cancel()
            for task in tasks:
                task.cancel()

    async def OpenSession(
        self, request: sandbox_pb2.OpenSessionRequest, context: Context
    ) -> sandbox_pb2.OpenSessionResponse:
        """Opens a session."""
        try:
            return await self._front.open_session(request)
        except REFUSALS as error:
            await refuse(context, error)

    async def ExecuteCell(self, request: sandbox_pb2.ExecuteCellRequest, context: Context) -> Response:
        """Runs one cell of a session."""
        try:
            return await self._front.execute_cell(request)
        except REFUSALS as error:
            await refuse(context, error)

    async def CloseSession(
        self, request: sandbox_pb2.CloseSessionRequest, context: Context
    ) -> sandbox_pb2.CloseSessionResponse:
        """Closes a session."""
        try:
            return await self._front.close_session(request)
        except REFUSALS as error:
            await refuse(context, error)

    async def GetCapacity(
        self, request: sandbox_pb2.GetCapacityRequest, context: Context
    ) -> sandbox_pb2.GetCapacityResponse:
        """Says how much runs and waits."""
        return self._front.capacity()


def _client_of(context: Context) -> str:
    for key, value in context.invocation_metadata() or ():
        if key == CLIENT_KEY:
            return f"named {value!s}"
    return context.peer()
