"""Running the tools that a policy calls, and what the policy is shown of the result.

The executor's answer is typed. Text for the policy never holds anything about the infrastructure: when a call could
not be run at all, its status is UNAVAILABLE, its text is empty, and the rollout is excluded by the agent loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
import grpc.aio

from rstar_model.tools import PYTHON_TOOL, ToolSpec
from rstar_model.types import ToolStatus
from rstar_protos.errors import ServiceUnavailableError
from rstar_protos.sandbox.v1 import sandbox_pb2, sandbox_pb2_grpc
from rstar_protos.service import call_with_retry

__all__ = ["SandboxToolExecutor", "ToolExecutor", "ToolInvocation", "ToolResult", "response_text"]

_TRACEBACK_LINES = 8
_NO_OUTPUT = "(no output)"


@dataclass(frozen=True)
class ToolInvocation:
    """One call. ``call_id`` is unique for it, so that repeating a request never runs it twice."""

    call_id: str
    name: str
    arguments: Mapping[str, Any]
    wall_seconds: float
    memory_bytes: int


@dataclass(frozen=True)
class ToolResult:
    """What came of a call. ``text`` is for the policy, ``detail`` for operators only."""

    status: ToolStatus
    text: str
    wall_seconds: float = 0.0
    queue_seconds: float = 0.0
    truncated: bool = False
    detail: str = ""


class ToolExecutor(Protocol):
    """Whatever can run tools. ``specs`` are shown to the policy in the prompt."""

    specs: tuple[ToolSpec, ...]

    async def execute(self, invocation: ToolInvocation) -> ToolResult:
        """Run one call. Infrastructure faults are returned as UNAVAILABLE, never raised."""


class SandboxToolExecutor:
    """The Python tool, run by a SandboxService.

    Args:
        channel: to the service.
        patience_seconds: how long to go on trying while the service is away or full; a restart only delays.
        queue_seconds: how long a call may wait in the service's queue on top of its own time limit. Generous: a
            round of endless programs fills the queue, and waiting for them is nobody's fault.
    """

    def __init__(
        self, channel: grpc.aio.Channel, *, patience_seconds: float = 60.0, queue_seconds: float = 300.0
    ) -> None:
        self.specs: tuple[ToolSpec, ...] = (PYTHON_TOOL,)
        self._stub = sandbox_pb2_grpc.SandboxServiceStub(channel)
        self._patience = patience_seconds
        self._queue = queue_seconds

    async def execute(self, invocation: ToolInvocation) -> ToolResult:
        """Run one program; the same call id is used for every attempt."""
        request = sandbox_pb2.ExecuteRequest(
            request_id=invocation.call_id,
            code=str(invocation.arguments.get("code", "")),
            stdin=str(invocation.arguments.get("input", "")).encode("utf-8", "replace"),
            limits=sandbox_pb2.Limits(wall_seconds=invocation.wall_seconds, memory_bytes=invocation.memory_bytes),
        )
        try:
            response: sandbox_pb2.ExecuteResponse = await call_with_retry(
                self._stub.Execute,
                request,
                timeout_s=invocation.wall_seconds + self._queue,
                patience_s=self._patience,
            )
        except ServiceUnavailableError as error:
            return ToolResult(ToolStatus.UNAVAILABLE, "", detail=str(error))
        except grpc.aio.AioRpcError as error:
            limits_refused = (error.details() or "").startswith("limits.")  # these are the operator's
            if error.code() == grpc.StatusCode.INVALID_ARGUMENT and not limits_refused:
                # The program itself was refused: the policy's doing, so it must count as a failed call.
                return ToolResult(ToolStatus.ERROR, "Error: the program was refused.", detail=str(error.details()))
            return ToolResult(ToolStatus.UNAVAILABLE, "", detail=f"{error.code().name}: {error.details()}")
        status = ToolStatus.from_proto(response.status)
        return ToolResult(
            status=status,
            text="" if status is ToolStatus.UNAVAILABLE else response_text(response, status, invocation),
            wall_seconds=response.timing.wall_seconds,
            queue_seconds=response.timing.queue_seconds,
            truncated=response.stdout_truncated,
            detail=response.detail,
        )


def response_text(response: sandbox_pb2.ExecuteResponse, status: ToolStatus, invocation: ToolInvocation) -> str:
    """What the policy is shown: stdout, else the value of the last expression, else traceback or verdict.

    A failed program's partial output comes before what ended it. Trailing newlines are left out.
    """
    output = response.stdout.decode("utf-8", "replace").rstrip("\n")
    if status is ToolStatus.OK:
        if output:
            return output
        return response.value if response.HasField("value") else _NO_OUTPUT
    verdict = _verdict(response, status, invocation)
    return f"{output}\n{verdict}" if output else verdict


def _verdict(response: sandbox_pb2.ExecuteResponse, status: ToolStatus, invocation: ToolInvocation) -> str:
    if status is ToolStatus.ERROR and response.traceback:
        return _last_lines(response.traceback.rstrip("\n"))
    if status is ToolStatus.TIMEOUT:
        return f"Timeout: the program did not finish within {invocation.wall_seconds:g} seconds."
    if status is ToolStatus.MEMORY_LIMIT:
        return "Memory limit: the program used too much memory."
    if status is ToolStatus.OUTPUT_LIMIT:
        return "Output limit: the program printed too much."
    if response.HasField("signal"):
        return f"The program was ended by signal {response.signal}."
    if response.HasField("exit_code"):
        return f"The program ended with exit code {response.exit_code}."
    return "The program failed."


def _last_lines(traceback: str) -> str:
    """Header and end of a traceback: the place and the exception are in its last lines."""
    lines = traceback.splitlines()
    if len(lines) <= _TRACEBACK_LINES + 1:
        return traceback
    return "\n".join([lines[0], "  ...", *lines[-_TRACEBACK_LINES:]])
