"""SandboxService: the contract over a worker pool. A thin shell: it converts, remembers and refuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from importlib import metadata
from typing import Any, NoReturn, TypeVar

import grpc
import grpc.aio

from rstar_protos.errors import UserInputError
from rstar_protos.sandbox.v1 import sandbox_pb2, sandbox_pb2_grpc
from rstar_protos.service import ServeSettings, abort_with_retry_hint, serve
from rstar_sandbox import metrics
from rstar_sandbox.addresses import with_stable_addresses
from rstar_sandbox.conversion import job_from_proto, limits_from_proto, response_from_outcome
from rstar_sandbox.executor import Placed, PoolFullError, SlotLostError
from rstar_sandbox.pool import WorkerPool
from rstar_sandbox.remembered import DifferentRequestError, RememberedResults
from rstar_sandbox.session_table import (
    SessionLostError,
    SessionTable,
    TooManySessionsError,
    UnknownSessionError,
)
from rstar_sandbox.settings import SandboxSettings
from rstar_sandbox.status import Status
from rstar_sandbox.zygote_process import ZygoteProcess

__all__ = ["SandboxServicer", "serve_sandbox"]

Request = sandbox_pb2.ExecuteRequest
Response = sandbox_pb2.ExecuteResponse
Context = grpc.aio.ServicerContext[Any, Any]
Result = TypeVar("Result")

_SESSION_ROOM_MILLISECONDS = 1000


class SandboxServicer(sandbox_pb2_grpc.SandboxServiceServicer):
    """Answers the calls of SandboxService.

    Args:
        pool: a started pool.
    """

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool
        self._sessions = SessionTable(pool)
        settings = pool.settings
        self._results = RememberedResults[Response](
            settings.remembered_results,
            settings.remembered_bytes,
            size=lambda response: response.ByteSize(),
            keep=lambda response: response.status != Status.UNAVAILABLE.to_proto(),
        )
        self._session_ids = RememberedResults[str](4096, 1024**2, size=len, keep=lambda _: True)

    async def Execute(self, request: Request, context: Context) -> Response:
        """Runs one program."""
        return await _refusing(context, self._execute(request))

    async def ExecuteMany(self, request_iterator: AsyncIterator[Request], context: Context) -> AsyncIterator[Response]:
        """Runs many programs; results as they finish. Reads no further than it can run: that is the back-pressure."""
        room = asyncio.Semaphore(4 * self._pool.settings.slots)
        results: asyncio.Queue[Response | BaseException | None] = asyncio.Queue()
        tasks: set[asyncio.Task[None]] = set()

        async def run(request: Request) -> None:
            try:
                results.put_nowait(await self._execute(request, wait_for_room=True))
            except Exception as error:
                results.put_nowait(error)
            finally:
                room.release()

        async def read() -> None:
            try:
                async for request in request_iterator:
                    if not request.request_id:
                        raise UserInputError("request_id", "", "results of a stream are told apart by it; give one")
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
                    await _refuse(context, result)
                yield result
        finally:
            reader.cancel()
            for task in tasks:
                task.cancel()

    async def OpenSession(
        self, request: sandbox_pb2.OpenSessionRequest, context: Context
    ) -> sandbox_pb2.OpenSessionResponse:
        """Opens a session."""

        async def open_session() -> str:
            settings = self._pool.settings
            limits = limits_from_proto(request.limits).over(settings.defaults, settings.ceiling)
            return await self._sessions.open(limits, request.ttl_seconds)

        work = self._session_ids.answer(request.request_id, request.SerializeToString(deterministic=True), open_session)
        return sandbox_pb2.OpenSessionResponse(session_id=await _refusing(context, work))

    async def ExecuteCell(self, request: sandbox_pb2.ExecuteCellRequest, context: Context) -> Response:
        """Runs one cell of a session."""
        return await _refusing(context, self._execute_cell(request))

    async def CloseSession(
        self, request: sandbox_pb2.CloseSessionRequest, context: Context
    ) -> sandbox_pb2.CloseSessionResponse:
        """Closes a session."""
        try:
            self._sessions.close(request.session_id)
        except UnknownSessionError as error:
            await _refuse(context, error)
        return sandbox_pb2.CloseSessionResponse()

    async def GetCapacity(
        self, request: sandbox_pb2.GetCapacityRequest, context: Context
    ) -> sandbox_pb2.GetCapacityResponse:
        """Says how much runs and waits."""
        return sandbox_pb2.GetCapacityResponse(
            slots=self._pool.settings.slots,
            running=self._pool.running,
            queued=self._pool.queued,
            queue_limit=self._pool.settings.queue_limit,
            isolation=self._pool.level,
            version=metadata.version("rstar-sandbox"),
        )

    def close(self) -> None:
        """Closes all sessions."""
        self._sessions.close_all()

    async def _execute(self, request: Request, wait_for_room: bool = False) -> Response:
        job = job_from_proto(request, self._pool.settings)

        async def run() -> Response:
            placed = await self._pool.run(job, wait_for_room=wait_for_room)
            return self._respond(request, placed)

        return await self._results.answer(request.request_id, request.SerializeToString(deterministic=True), run)

    async def _execute_cell(self, request: sandbox_pb2.ExecuteCellRequest) -> Response:
        defaults = self._sessions.limits_of(request.session_id)
        job = job_from_proto(request.cell, self._pool.settings, defaults)

        async def run() -> Response:
            placed = await self._sessions.run_cell(request.session_id, job)
            response = self._respond(request.cell, placed)
            lost = placed.outcome.state_lost
            response.session_state = sandbox_pb2.SESSION_STATE_LOST if lost else sandbox_pb2.SESSION_STATE_KEPT
            response.session_state_reason = lost
            return response

        key = f"{request.session_id}/{request.cell.request_id}" if request.cell.request_id else ""
        return await self._results.answer(key, request.SerializeToString(deterministic=True), run)

    def _respond(self, request: Request, placed: Placed) -> Response:
        metrics.observe(placed)
        outcome = placed.outcome
        if self._pool.settings.seed is not None:
            outcome = with_stable_addresses(outcome)
        return response_from_outcome(request.request_id, outcome, placed.queue_seconds, self._pool.level)


async def serve_sandbox(settings: SandboxSettings, serving: ServeSettings, zygote: ZygoteProcess | None = None) -> None:
    """Serves until told to stop; see `rstar_protos.service.serve`.

    Args:
        settings: how programs run.
        serving: how the service listens.
        zygote: one started before gRPC was loaded.
    """
    pool = WorkerPool(settings, zygote)
    pool.start()
    servicer: SandboxServicer | None = None

    def register(server: grpc.aio.Server) -> None:
        nonlocal servicer
        servicer = SandboxServicer(pool)
        sandbox_pb2_grpc.add_SandboxServiceServicer_to_server(servicer, server)

    async def ready() -> None:
        await pool.ready()
        metrics.watch_pool(pool)

    watching = asyncio.ensure_future(ready())
    try:
        await serve(serving, "sandbox", register, [sandbox_pb2.DESCRIPTOR])
    finally:
        watching.cancel()
        if servicer is not None:
            servicer.close()
        await pool.stop()


async def _refusing(context: Context, work: Awaitable[Result]) -> Result:
    """The result of the work, or the call ended with the status that its refusal means."""
    try:
        return await work
    except (
        UserInputError,
        PoolFullError,
        SlotLostError,
        DifferentRequestError,
        TooManySessionsError,
        UnknownSessionError,
        SessionLostError,
    ) as error:
        await _refuse(context, error)


async def _refuse(context: Context, error: BaseException) -> NoReturn:
    if isinstance(error, PoolFullError):
        await abort_with_retry_hint(context, str(error), max(1, int(error.retry_after_seconds * 1000)))
    if isinstance(error, TooManySessionsError):
        await abort_with_retry_hint(context, "as many sessions are open as allowed", _SESSION_ROOM_MILLISECONDS)
    await context.abort(_code_of(error), _words_of(error))
    raise AssertionError("abort raises")


def _code_of(error: BaseException) -> grpc.StatusCode:
    if isinstance(error, SlotLostError):
        return grpc.StatusCode.UNAVAILABLE
    if isinstance(error, (UserInputError, DifferentRequestError)):
        return grpc.StatusCode.INVALID_ARGUMENT
    if isinstance(error, UnknownSessionError):
        return grpc.StatusCode.NOT_FOUND
    if isinstance(error, SessionLostError):
        return grpc.StatusCode.FAILED_PRECONDITION
    return grpc.StatusCode.INTERNAL


def _words_of(error: BaseException) -> str:
    if isinstance(error, DifferentRequestError):
        return "request_id: it was used for another request; give each request its own"
    if isinstance(error, SessionLostError):
        return f"the session's state is lost: {error}"
    return str(error) or type(error).__name__
