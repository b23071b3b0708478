"""What clients reach, by gRPC or by HTTP: checks, remembers and dispatches."""

from __future__ import annotations

import hashlib
from importlib import metadata

from rstar_protos.sandbox.v1 import sandbox_pb2
from rstar_sandbox import metrics
from rstar_sandbox.conversion import check_request, limits_from_proto
from rstar_sandbox.dispatcher.dispatcher import Dispatcher
from rstar_sandbox.dispatcher.session_routes import SessionRoutes
from rstar_sandbox.levels import LEVELS
from rstar_sandbox.remembered import RememberedResults
from rstar_sandbox.status import Status

__all__ = ["Front"]

_UNAVAILABLE = Status.UNAVAILABLE.to_proto()


class Front:
    """Answers calls over a dispatcher.

    Args:
        dispatcher: places them.
        remembered_results: answers kept for retries with the same request id.
        remembered_bytes: what they may add up to.
    """

    def __init__(
        self, dispatcher: Dispatcher, remembered_results: int = 4096, remembered_bytes: int = 64 * 1024**2
    ) -> None:
        self.dispatcher = dispatcher
        self._sessions = SessionRoutes(dispatcher)
        self._results = RememberedResults[sandbox_pb2.ExecuteResponse](
            remembered_results,
            remembered_bytes,
            size=lambda response: response.ByteSize(),
            keep=lambda response: response.status != _UNAVAILABLE,
        )
        self._session_ids = RememberedResults[str](4096, 1024**2, size=len, keep=lambda _: True)

    async def execute(
        self, request: sandbox_pb2.ExecuteRequest, client: str, *, wait_for_room: bool = False
    ) -> sandbox_pb2.ExecuteResponse:
        """Runs one program; once for each request id.

        Args:
            request: from a client.
            client: whom to be fair to.
            wait_for_room: for callers that bound what they have in flight themselves.

        Raises:
            UserInputError: a limit or a path that cannot be used.
            QueueFullError: no room.
            DifferentRequestError: the id belongs to another request.
        """
        check_request(request)

        async def run() -> sandbox_pb2.ExecuteResponse:
            response = await self.dispatcher.execute(request, client, wait_for_room=wait_for_room)
            metrics.PROGRAMS.observe(response)
            return response

        if not request.request_id:
            return await run()
        return await self._results.answer(request.request_id, _fingerprint(request), run)

    async def open_session(self, request: sandbox_pb2.OpenSessionRequest) -> sandbox_pb2.OpenSessionResponse:
        """Opens a session; one for each request id."""
        limits_from_proto(request.limits)
        session_id = await self._session_ids.answer(
            request.request_id, _fingerprint(request), lambda: self._sessions.open(request)
        )
        return sandbox_pb2.OpenSessionResponse(session_id=session_id)

    async def execute_cell(self, request: sandbox_pb2.ExecuteCellRequest) -> sandbox_pb2.ExecuteResponse:
        """Runs one cell; once for each request id of the session."""
        check_request(request.cell)

        async def run() -> sandbox_pb2.ExecuteResponse:
            response = await self._sessions.execute_cell(request)
            metrics.PROGRAMS.observe(response)
            return response

        key = f"{request.session_id}/{request.cell.request_id}" if request.cell.request_id else ""
        return await self._results.answer(key, _fingerprint(request), run)

    async def close_session(self, request: sandbox_pb2.CloseSessionRequest) -> sandbox_pb2.CloseSessionResponse:
        """Closes a session."""
        return await self._sessions.close(request)

    def capacity(self) -> sandbox_pb2.GetCapacityResponse:
        """How much runs and waits, and under which isolation at least."""
        levels = {node.isolation for node in self.dispatcher.nodes}
        return sandbox_pb2.GetCapacityResponse(
            slots=self.dispatcher.slots,
            running=self.dispatcher.running,
            queued=self.dispatcher.queued,
            queue_limit=self.dispatcher.queue_limit,
            isolation=min(levels, key=LEVELS.index, default=""),
            version=metadata.version("rstar-sandbox"),
            workers=self.dispatcher.workers,
        )


def _fingerprint(
    request: sandbox_pb2.ExecuteRequest | sandbox_pb2.OpenSessionRequest | sandbox_pb2.ExecuteCellRequest,
) -> bytes:
    return hashlib.blake2b(request.SerializeToString(deterministic=True), digest_size=16).digest()
