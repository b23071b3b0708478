"""The blocking convenience: a sandbox of one's own in three lines, or a remote one, without asyncio."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from rstar_protos.sandbox.v1 import sandbox_pb2
from rstar_protos.service import EMBEDDED, ClientSecurity, EmbeddedService
from rstar_sandbox.client import SandboxClient
from rstar_sandbox.limits import Limits, limits_given
from rstar_sandbox.results import ExecutionResult

__all__ = ["Sandbox", "Session"]

Result = TypeVar("Result")


class Sandbox:
    """Runs Python programs, each in a process of its own.

    Args:
        endpoint: of a running service; "embedded" starts one that ends with this object.
        slots: embedded only: programs that run at the same time; None: twice the number of cores.
        security: certificates and token of a remote service.
        log_path: embedded only: where the service's log goes; None: nowhere that stays.
        options: embedded only: further options of `rstar-sandbox serve`.

    Example:
        >>> with Sandbox() as sandbox:
        ...     sandbox.run("2 + 3").value
        '5'
    """

    def __init__(
        self,
        endpoint: str = EMBEDDED,
        *,
        slots: int | None = None,
        security: ClientSecurity | None = None,
        log_path: Path | None = None,
        options: Sequence[str] = (),
    ) -> None:
        self._service: EmbeddedService | None = None
        if endpoint == EMBEDDED:
            command = [sys.executable, "-m", "rstar_sandbox", "serve", *options]
            if slots is not None:
                command += ["--slots", str(slots)]
            self._service = EmbeddedService("sandbox", command, log_path=log_path)
            try:
                endpoint = self._service.start()
            except BaseException:
                self._service.stop()
                raise
        self.endpoint = endpoint
        """Where other clients reach the same service."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sandbox-client", daemon=True)
        self._thread.start()
        self._client = self._wait(_connect(endpoint, security))
        self._closed = False

    def run(
        self,
        code: str,
        stdin: bytes | str = b"",
        *,
        timeout_s: float = 0.0,
        memory_mb: float = 0.0,
        limits: Limits | None = None,
        files: Mapping[str, bytes] | None = None,
        collect: Sequence[str] = (),
    ) -> ExecutionResult:
        """Runs one program and returns how it ended.

        Args:
            code: Python source.
            stdin: standard input; ends after it.
            timeout_s: wall clock limit, seconds; 0: the default.
            memory_mb: memory limit, MiB; 0: the default.
            limits: all limits, instead of the two above.
            files: relative path -> content, put into the working directory.
            collect: relative paths of files to bring back.

        Raises:
            ServiceUnavailableError: the service is away.
        """
        limits = limits or _limits(timeout_s, memory_mb)
        return self._wait(self._client.run(code, stdin, limits=limits, files=files, collect=collect))

    def run_many(self, requests: Iterable[sandbox_pb2.ExecuteRequest]) -> Iterator[ExecutionResult]:
        """Runs many programs (see `rstar_sandbox.client.execute_request`); results come as they finish."""
        results = self._client.run_many(requests)
        try:
            while (result := self._wait(_next(results))) is not None:
                yield result
        finally:
            self._wait(_close(results))

    def session(self, *, timeout_s: float = 0.0, memory_mb: float = 0.0, ttl_s: float = 0.0) -> Session:
        """Opens a session: an interpreter that keeps its state from cell to cell."""
        limits = _limits(timeout_s, memory_mb)
        return Session(self, self._wait(self._client.open_session(limits=limits, ttl_s=ttl_s)))

    def close(self) -> None:
        """Closes the connection and ends an embedded service. Calling it twice is harmless."""
        if self._closed:
            return
        self._closed = True
        self._wait(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        if self._service is not None:
            self._service.stop()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _wait(self, work: Coroutine[Any, Any, Result]) -> Result:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


class Session:
    """An open session; see `Sandbox.session`."""

    def __init__(self, sandbox: Sandbox, session_id: str) -> None:
        self._sandbox = sandbox
        self.session_id = session_id

    def run(self, code: str, stdin: bytes | str = b"", *, timeout_s: float = 0.0) -> ExecutionResult:
        """Runs a cell; `state_lost` of the result says whether the state is gone."""
        work = self._sandbox._client.run_cell(self.session_id, code, stdin, limits=Limits(wall_seconds=timeout_s))
        return self._sandbox._wait(work)

    def close(self) -> None:
        """Ends the session."""
        self._sandbox._wait(self._sandbox._client.close_session(self.session_id))

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _limits(timeout_s: float, memory_mb: float) -> Limits:
    return limits_given(timeout_s, memory_mb, seconds_field="timeout_s", memory_field="memory_mb")


async def _connect(endpoint: str, security: ClientSecurity | None) -> SandboxClient:
    return SandboxClient(endpoint, security=security)


async def _next(results: AsyncIterator[ExecutionResult]) -> ExecutionResult | None:
    return await anext(results, None)


async def _close(results: Any) -> None:
    await results.aclose()
