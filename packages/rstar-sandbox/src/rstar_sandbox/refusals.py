"""Calls that end with a status other than OK: one form of it, on gRPC, HTTP and between dispatcher and worker."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NoReturn

import grpc
import grpc.aio

from rstar_protos.errors import UserInputError
from rstar_protos.sandbox.v1 import sandbox_pb2
from rstar_protos.service import abort_with_retry_hint
from rstar_sandbox.executor import IsolationError, SlotLostError
from rstar_sandbox.nodes import NodeLostError
from rstar_sandbox.remembered import DifferentRequestError
from rstar_sandbox.session_table import SessionLostError, TooManySessionsError, UnknownSessionError

__all__ = ["REFUSALS", "QueueFullError", "Refusal", "RefusedError", "refuse"]

_SESSION_ROOM_MILLISECONDS = 1000
_CODES = {code.value[0]: code for code in grpc.StatusCode}


class QueueFullError(Exception):
    """The queue is full; `retry_after_seconds` says when to come back."""

    def __init__(self, retry_after_seconds: float) -> None:
        super().__init__("the queue of the sandbox is full")
        self.retry_after_seconds = retry_after_seconds


@dataclass(frozen=True)
class Refusal:
    """Why a call was not answered."""

    code: grpc.StatusCode
    details: str
    retry_after_milliseconds: int = 0
    """When to come back; 0: no hint."""

    @classmethod
    def of(cls, error: BaseException) -> Refusal:
        """The refusal that an error means; INTERNAL for one that is none of `REFUSALS`."""
        if isinstance(error, RefusedError):
            return error.refusal
        if isinstance(error, QueueFullError):
            hint = max(1, int(error.retry_after_seconds * 1000))
            return cls(grpc.StatusCode.RESOURCE_EXHAUSTED, str(error), hint)
        if isinstance(error, TooManySessionsError):
            details = "as many sessions are open as allowed"
            return cls(grpc.StatusCode.RESOURCE_EXHAUSTED, details, _SESSION_ROOM_MILLISECONDS)
        return cls(_code_of(error), _words_of(error))

    @classmethod
    def from_proto(cls, message: sandbox_pb2.Refusal) -> Refusal:
        """From the contract's message."""
        code = _CODES.get(message.code, grpc.StatusCode.INTERNAL)
        return cls(code, message.details, message.retry_after_milliseconds)

    def to_proto(self) -> sandbox_pb2.Refusal:
        """The contract's message."""
        return sandbox_pb2.Refusal(
            code=self.code.value[0], details=self.details, retry_after_milliseconds=self.retry_after_milliseconds
        )


class RefusedError(Exception):
    """A node refused a call."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.details)
        self.refusal = refusal


REFUSALS = (
    UserInputError,
    QueueFullError,
    SlotLostError,
    IsolationError,
    NodeLostError,
    RefusedError,
    DifferentRequestError,
    TooManySessionsError,
    UnknownSessionError,
    SessionLostError,
)
"""Errors that say why a call is not answered, as opposed to faults of our own."""


async def refuse(context: grpc.aio.ServicerContext[Any, Any], error: BaseException) -> NoReturn:
    """Ends a gRPC call with the status that an error means."""
    refusal = Refusal.of(error)
    if refusal.retry_after_milliseconds:
        await abort_with_retry_hint(context, refusal.details, refusal.retry_after_milliseconds)
    await context.abort(refusal.code, refusal.details)
    raise AssertionError("abort raises")


def _code_of(error: BaseException) -> grpc.StatusCode:
    if isinstance(error, (SlotLostError, NodeLostError)):
        return grpc.StatusCode.UNAVAILABLE
    if isinstance(error, (UserInputError, DifferentRequestError)):
        return grpc.StatusCode.INVALID_ARGUMENT
    if isinstance(error, UnknownSessionError):
        return grpc.StatusCode.NOT_FOUND
    if isinstance(error, (SessionLostError, IsolationError)):
        return grpc.StatusCode.FAILED_PRECONDITION
    return grpc.StatusCode.INTERNAL


def _words_of(error: BaseException) -> str:
    if isinstance(error, DifferentRequestError):
        return "request_id: it was used for another request; give each request its own"
    if isinstance(error, SessionLostError):
        return f"the session's state is lost: {error}"
    return str(error) or type(error).__name__
