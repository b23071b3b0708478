"""The asyncio client of a sandbox service."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType

import grpc
import grpc.aio

from rstar_protos.errors import ServiceUnavailableError
from rstar_protos.sandbox.v1 import sandbox_pb2, sandbox_pb2_grpc
from rstar_protos.service import ClientSecurity, call_with_retry, open_channel
from rstar_sandbox.conversion import limits_to_proto
from rstar_sandbox.limits import Limits
from rstar_sandbox.results import ExecutionResult

__all__ = ["CLIENT_KEY", "SandboxClient", "execute_request"]

CLIENT_KEY = "rstar-client"
"""Metadata that names the client that a call belongs to, for fairness; without it each connection is a client."""


class SandboxClient:
    """Runs programs on a sandbox service, from asyncio code.

    Args:
        endpoint: `unix:/path`, `grpc://host:port` or `grpcs://host:port`; or an open channel.
        security: certificates and token; ignored with an open channel.
        patience_s: how long a call is retried while the service is away or has no room, seconds.
        name: whom the service shall be fair to; None: each connection counts as a client.
    """

    def __init__(
        self,
        endpoint: str | grpc.aio.Channel,
        *,
        security: ClientSecurity | None = None,
        patience_s: float = 60.0,
        name: str | None = None,
    ) -> None:
        self._owned = isinstance(endpoint, str)
        self._channel = open_channel(endpoint, security) if isinstance(endpoint, str) else endpoint
        self._stub = sandbox_pb2_grpc.SandboxServiceStub(self._channel)
        self._patience = patience_s
        metadata = ((CLIENT_KEY, name),) if name else None
        self._execute = partial(self._stub.Execute, metadata=metadata)
        self._execute_many = partial(self._stub.ExecuteMany, metadata=metadata)

    async def run(
        self,
        code: str,
        stdin: bytes | str = b"",
        *,
        limits: Limits | None = None,
        files: Mapping[str, bytes] | None = None,
        collect: Sequence[str] = (),
        request_id: str | None = None,
    ) -> ExecutionResult:
        """Runs one program.

        Args:
            code: Python source.
            stdin: standard input; ends after it.
            limits: zeros and None: the service's defaults.
            files: relative path -> content, put into the working directory.
            collect: relative paths of files to bring back.
            request_id: a retry with the same id never runs the program twice; None: a new one.

        Raises:
            ServiceUnavailableError: no answer within the patience.
            grpc.aio.AioRpcError: the request was refused.
        """
        request = execute_request(code, stdin, limits, files, collect, request_id)
        response = await call_with_retry(self._execute, request, patience_s=self._patience)
        return ExecutionResult.from_proto(response)

    async def run_many(
        self, requests: Iterable[sandbox_pb2.ExecuteRequest] | AsyncIterable[sandbox_pb2.ExecuteRequest]
    ) -> AsyncIterator[ExecutionResult]:
        """Runs many programs over one stream (see `execute_request`); results come as they finish, told apart by id.

        Raises:
            ServiceUnavailableError: the service went away; what was not answered can be sent again with the same ids.
            grpc.aio.AioRpcError: a request was refused.
        """
        call = self._execute_many(requests)
        try:
            async for response in call:
                yield ExecutionResult.from_proto(response)
        except grpc.aio.AioRpcError as error:
            if error.code() == grpc.StatusCode.UNAVAILABLE:
                raise ServiceUnavailableError(f"the sandbox went away: {error.details()}") from error
            raise
        finally:
            call.cancel()

    async def open_session(self, *, limits: Limits | None = None, ttl_s: float = 0.0) -> str:
        """Opens a session and returns its id.

        Args:
            limits: of each cell.
            ttl_s: idle time after which it is closed, seconds; 0: the service's default.
        """
        request = sandbox_pb2.OpenSessionRequest(
            request_id=uuid.uuid4().hex, limits=limits_to_proto(limits or Limits()), ttl_seconds=ttl_s
        )
        response = await call_with_retry(self._stub.OpenSession, request, patience_s=self._patience)
        session_id: str = response.session_id
        return session_id

    async def run_cell(
        self,
        session_id: str,
        code: str,
        stdin: bytes | str = b"",
        *,
        limits: Limits | None = None,
        request_id: str | None = None,
    ) -> ExecutionResult:
        """Runs a cell of a session; `state_lost` of the result says whether the session goes on."""
        cell = execute_request(code, stdin, limits, None, (), request_id)
        request = sandbox_pb2.ExecuteCellRequest(session_id=session_id, cell=cell)
        response = await call_with_retry(self._stub.ExecuteCell, request, patience_s=self._patience)
        return ExecutionResult.from_proto(response)

    async def close_session(self, session_id: str) -> None:
        """Closes a session."""
        request = sandbox_pb2.CloseSessionRequest(session_id=session_id)
        await call_with_retry(self._stub.CloseSession, request, patience_s=self._patience)

    async def capacity(self) -> sandbox_pb2.GetCapacityResponse:
        """How much runs and waits."""
        return await call_with_retry(
            self._stub.GetCapacity, sandbox_pb2.GetCapacityRequest(), patience_s=self._patience
        )

    async def close(self) -> None:
        """Closes the channel, when the client opened it."""
        if self._owned:
            await self._channel.close()

    async def __aenter__(self) -> SandboxClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def execute_request(
    code: str,
    stdin: bytes | str = b"",
    limits: Limits | None = None,
    files: Mapping[str, bytes] | None = None,
    collect: Sequence[str] = (),
    request_id: str | None = None,
) -> sandbox_pb2.ExecuteRequest:
    """The contract's request for one program, with a new request id unless one is given.

    A lone surrogate in the source cannot cross the contract; it is sent as its escape, which means the same inside
    a string literal.
    """
    return sandbox_pb2.ExecuteRequest(
        request_id=request_id or uuid.uuid4().hex,
        code=code.encode("utf-8", "backslashreplace").decode("utf-8"),
        stdin=stdin.encode("utf-8", "surrogateescape") if isinstance(stdin, str) else stdin,
        limits=limits_to_proto(limits or Limits()),
        files=[sandbox_pb2.File(path=path, content=content) for path, content in (files or {}).items()],
        collect_paths=list(collect),
    )
