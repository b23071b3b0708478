"""Which node holds which session: sticky, and truthful when the node is gone."""

from __future__ import annotations

import collections

import grpc

from rstar_protos.sandbox.v1 import sandbox_pb2
from rstar_sandbox.dispatcher.dispatcher import Dispatcher
from rstar_sandbox.nodes import Node, NodeLostError
from rstar_sandbox.refusals import Refusal
from rstar_sandbox.session_table import SessionLostError, TooManySessionsError, UnknownSessionError
from rstar_sandbox.status import Status

__all__ = ["SessionRoutes"]

_REMEMBERED = 4096
_WORKER_LOST = "the session's worker was lost"
_UNAVAILABLE = Status.UNAVAILABLE.to_proto()


class SessionRoutes:
    """Opens sessions where most room is, and sends their cells there and nowhere else."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        self._nodes: collections.OrderedDict[str, Node] = collections.OrderedDict()
        """The least recently used first. A node closes idle sessions by itself, so some may be gone already."""
        self._ended: collections.OrderedDict[str, Exception] = collections.OrderedDict()
        """Sessions that are known to be gone, and what to tell who asks for them."""

    async def open(self, request: sandbox_pb2.OpenSessionRequest) -> str:
        """Opens a session and returns its id.

        Raises:
            TooManySessionsError: no node has room.
            NodeLostError: no node is attached.
        """
        used = collections.Counter(self._nodes.values())
        nodes = sorted(self._dispatcher.nodes, key=lambda node: used[node] - node.max_sessions)
        if not nodes:
            raise NodeLostError("no worker is attached")
        for node in nodes:
            try:
                response = await node.open_session(request)
            except NodeLostError:
                continue
            except Exception as error:
                if Refusal.of(error).code is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                    raise
                continue
            self._nodes[response.session_id] = node
            room = _REMEMBERED + sum(node.max_sessions for node in self._dispatcher.nodes)
            while len(self._nodes) > room:
                self._nodes.popitem(last=False)
            return response.session_id
        raise TooManySessionsError

    async def execute_cell(self, request: sandbox_pb2.ExecuteCellRequest) -> sandbox_pb2.ExecuteResponse:
        """Runs one cell where its session is.

        Raises:
            UnknownSessionError: no such session, or it was closed.
            SessionLostError: its worker is gone.
        """
        node = self._node_of(request.session_id)
        self._nodes.move_to_end(request.session_id)
        try:
            return await node.execute_cell(request)
        except NodeLostError:
            self._end(request.session_id, SessionLostError(_WORKER_LOST))
            return sandbox_pb2.ExecuteResponse(
                request_id=request.cell.request_id,
                status=_UNAVAILABLE,
                session_state=sandbox_pb2.SESSION_STATE_LOST,
                session_state_reason=_WORKER_LOST,
                detail=_WORKER_LOST,
            )
        except Exception as error:
            if Refusal.of(error).code is grpc.StatusCode.NOT_FOUND:
                self._end(request.session_id, error)
            raise

    async def close(self, request: sandbox_pb2.CloseSessionRequest) -> sandbox_pb2.CloseSessionResponse:
        """Closes a session; closing it again, or one whose worker is gone, is harmless.

        Raises:
            UnknownSessionError: the id was never given out.
        """
        if request.session_id in self._ended:
            return sandbox_pb2.CloseSessionResponse()
        node = self._nodes.get(request.session_id)
        if node is None:
            raise UnknownSessionError("there is no session with this id")
        try:
            return await node.close_session(request)
        except NodeLostError:
            return sandbox_pb2.CloseSessionResponse()
        finally:
            self._end(request.session_id, UnknownSessionError("closed by the client"))

    def _node_of(self, session_id: str) -> Node:
        node = self._nodes.get(session_id)
        if node is not None:
            if node in self._dispatcher.nodes:
                return node
            self._end(session_id, SessionLostError(_WORKER_LOST))
        raise self._ended.get(session_id) or UnknownSessionError("there is no session with this id")

    def _end(self, session_id: str, reason: Exception) -> None:
        self._nodes.pop(session_id, None)
        self._ended[session_id] = reason
        while len(self._ended) > _REMEMBERED:
            self._ended.popitem(last=False)
