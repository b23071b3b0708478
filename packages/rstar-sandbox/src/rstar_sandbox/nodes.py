"""What a dispatcher needs of whatever runs programs: this machine's slots, or a worker node behind a stream."""

from __future__ import annotations

from typing import Protocol

from rstar_protos.sandbox.v1 import sandbox_pb2

__all__ = ["Node", "NodeLostError"]


class NodeLostError(Exception):
    """The node is gone; what was asked of it is not known to have happened."""


class Node(Protocol):
    """Runs calls. Cancelling the awaiting task stops the call.

    All methods raise `NodeLostError`, or an error that `rstar_sandbox.refusals` knows.
    """

    @property
    def name(self) -> str:
        """For operators."""

    @property
    def remote(self) -> bool:
        """True for a worker node, False for slots of this process."""

    @property
    def slots(self) -> int:
        """Programs that it runs at the same time."""

    @property
    def max_sessions(self) -> int:
        """Sessions that it keeps at the same time."""

    @property
    def isolation(self) -> str:
        """The isolation level in force, one of `rstar_sandbox.levels.LEVELS`."""

    async def execute(self, request: sandbox_pb2.ExecuteRequest, epoch: int) -> sandbox_pb2.ExecuteResponse:
        """Runs one program; `epoch` counts the attempts at it, from 1."""

    async def open_session(self, request: sandbox_pb2.OpenSessionRequest) -> sandbox_pb2.OpenSessionResponse:
        """Opens a session."""

    async def execute_cell(self, request: sandbox_pb2.ExecuteCellRequest) -> sandbox_pb2.ExecuteResponse:
        """Runs one cell."""

    async def close_session(self, request: sandbox_pb2.CloseSessionRequest) -> sandbox_pb2.CloseSessionResponse:
        """Closes a session."""
