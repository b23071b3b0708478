"""This machine's slots as a node: from the contract's messages to jobs and back, without a hop in between."""

from __future__ import annotations

from collections.abc import Callable

from rstar_protos.sandbox.v1 import sandbox_pb2
from rstar_sandbox.addresses import with_stable_addresses
from rstar_sandbox.conversion import job_from_proto, limits_from_proto, response_from_outcome
from rstar_sandbox.executor import Executor, Placed, Sessions

__all__ = ["LocalNode"]


class LocalNode:
    """Runs calls on an executor of this process.

    Args:
        executor: started, or about to be: calls wait for its first slots.
        sessions: over the same slots.
        name: for operators.
        freed: called with this node and 1 when a program has ended and its slot could take another.
    """

    remote = False

    def __init__(
        self,
        executor: Executor,
        sessions: Sessions,
        name: str = "local",
        freed: Callable[[LocalNode, int], None] | None = None,
    ) -> None:
        self.name = name
        self._executor = executor
        self._sessions = sessions
        self._freed = freed

    @property
    def slots(self) -> int:
        """Programs that run at the same time."""
        return self._executor.settings.slots

    @property
    def max_sessions(self) -> int:
        """Sessions open at the same time."""
        return self._executor.settings.max_sessions

    @property
    def isolation(self) -> str:
        """The level in force."""
        return self._executor.level

    async def execute(self, request: sandbox_pb2.ExecuteRequest, epoch: int) -> sandbox_pb2.ExecuteResponse:
        """Runs one program."""
        try:
            job = job_from_proto(request, self._executor.settings)
            return self._respond(request, await self._executor.run(job))
        finally:
            if self._freed is not None:
                self._freed(self, 1)

    async def open_session(self, request: sandbox_pb2.OpenSessionRequest) -> sandbox_pb2.OpenSessionResponse:
        """Opens a session."""
        settings = self._executor.settings
        limits = limits_from_proto(request.limits).over(settings.defaults, settings.ceiling)
        return sandbox_pb2.OpenSessionResponse(session_id=await self._sessions.open(limits, request.ttl_seconds))

    async def execute_cell(self, request: sandbox_pb2.ExecuteCellRequest) -> sandbox_pb2.ExecuteResponse:
        """Runs one cell."""
        defaults = self._sessions.limits_of(request.session_id)
        job = job_from_proto(request.cell, self._executor.settings, defaults)
        placed = await self._sessions.run_cell(request.session_id, job)
        response = self._respond(request.cell, placed)
        lost = placed.outcome.state_lost
        response.session_state = sandbox_pb2.SESSION_STATE_LOST if lost else sandbox_pb2.SESSION_STATE_KEPT
        response.session_state_reason = lost
        return response

    async def close_session(self, request: sandbox_pb2.CloseSessionRequest) -> sandbox_pb2.CloseSessionResponse:
        """Closes a session."""
        self._sessions.close(request.session_id)
        return sandbox_pb2.CloseSessionResponse()

    def _respond(self, request: sandbox_pb2.ExecuteRequest, placed: Placed) -> sandbox_pb2.ExecuteResponse:
        outcome = placed.outcome
        if self._executor.settings.seed is not None:
            outcome = with_stable_addresses(outcome)
        return response_from_outcome(request.request_id, outcome, placed.queue_seconds, self._executor.level)
