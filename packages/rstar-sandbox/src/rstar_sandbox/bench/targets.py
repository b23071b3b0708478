"""The ways to run a program that are measured beside each other."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rstar_protos.errors import ServiceUnavailableError, UserInputError
from rstar_protos.sandbox.v1 import sandbox_pb2, sandbox_pb2_grpc
from rstar_protos.service import EMBEDDED, ClientSecurity, EmbeddedService, call_with_retry, open_channel
from rstar_sandbox.bench.processor_time import tree_time
from rstar_sandbox.bench.programs import Program
from rstar_sandbox.client import execute_request

__all__ = ["Cold", "Http", "Sample", "Service", "Stream", "Target", "parse_other"]

_WALL_SECONDS = 30.0
_COLD_SECONDS = 300.0
"""64 interpreters that import SymPy at once take their time on two cores."""
_ATTEMPT_SECONDS = 120.0
_EVERY_TIER = ("numpy", "sympy", "numpy, scipy, sympy")


@dataclass(frozen=True)
class Sample:
    """What came of one call."""

    output: str
    added_seconds: float | None = None
    """What the caller waited beyond the program's own time; None: the target does not tell the latter."""
    phases: dict[str, float] = field(default_factory=dict)
    """CPU seconds by phase, where the target tells them."""


class Target(Protocol):
    """One way to run programs."""

    name: str

    def opened(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Starts what it needs; once, before all rounds."""

    async def call(self, program: Program) -> Sample:
        """Runs one program."""

    def server_times(self) -> dict[str, float]:
        """CPU seconds so far, by part of the target, of processes that are not this one; empty: cannot be seen."""


class Service:
    """This service through gRPC, one call a program.

    Args:
        endpoint: "embedded" starts one, whose CPU time is then seen.
        security: certificates and token of a remote one.
        options: of `rstar-sandbox serve`, embedded only.
    """

    def __init__(
        self, endpoint: str = EMBEDDED, security: ClientSecurity | None = None, options: Sequence[str] = ()
    ) -> None:
        self.name = "service"
        self.isolation = ""
        self.slots = 0
        self.tier_seen: dict[str, int] = {}
        self._endpoint, self._security, self._options = endpoint, security, list(options)
        self._embedded: EmbeddedService | None = None
        self._stub: Any = None

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Starts the service, if it is an embedded one, and connects."""
        endpoint = self._endpoint
        if endpoint == EMBEDDED:
            command = [sys.executable, "-m", "rstar_sandbox", "serve", *self._options]
            self._embedded = EmbeddedService("sandbox", command)
            endpoint = await asyncio.to_thread(self._embedded.start)
        try:
            async with open_channel(endpoint, self._security) as channel:
                self._stub = sandbox_pb2_grpc.SandboxServiceStub(channel)
                # The first call comes back when the slots are there, and only then is the level known.
                await self.call(Program("", ""))
                for modules in _EVERY_TIER:
                    # What is still warming up would be measured with the first rounds.
                    await self.call(Program(f"import {modules}", ""))
                self.tier_seen.clear()
                capacity = await self._stub.GetCapacity(sandbox_pb2.GetCapacityRequest())
                self.isolation, self.slots = capacity.isolation, capacity.slots
                yield
        finally:
            if self._embedded is not None:
                await asyncio.to_thread(self._embedded.stop)

    async def call(self, program: Program) -> Sample:
        """One Execute."""
        request = execute_request(program.code)
        request.limits.wall_seconds = _WALL_SECONDS
        started = time.perf_counter()
        response = await call_with_retry(self._stub.Execute, request, timeout_s=_ATTEMPT_SECONDS)
        return self._sample(response, time.perf_counter() - started)

    def server_times(self) -> dict[str, float]:
        """Of the process that serves clients, and of all processes below it."""
        if self._embedded is None or self._embedded.pid is None:
            return {}
        times = tree_time(self._embedded.pid)
        return {"front": times.root, "below": times.below}

    def _sample(self, response: sandbox_pb2.ExecuteResponse, seconds: float) -> Sample:
        timing = response.timing
        phases = {name: getattr(timing, name).cpu_seconds for name in ("fork", "exec", "drain", "reap")}
        if response.tier:
            self.tier_seen[response.tier] = self.tier_seen.get(response.tier, 0) + 1
        return Sample(response.stdout.decode("utf-8", "replace"), seconds - timing.wall_seconds, phases)


class Stream:
    """The same service, all programs over one ExecuteMany stream."""

    def __init__(self, service: Service) -> None:
        self.name = "service, one stream"
        self._service = service
        self._call: Any = None
        self._waiting: dict[str, asyncio.Future[sandbox_pb2.ExecuteResponse]] = {}
        self._outgoing: asyncio.Queue[sandbox_pb2.ExecuteRequest | None] = asyncio.Queue()

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Opens the stream; the service has to be open."""
        self._call = self._service._stub.ExecuteMany(self._requests())
        reader = asyncio.ensure_future(self._read())
        try:
            yield
        finally:
            self._outgoing.put_nowait(None)
            await asyncio.gather(reader, return_exceptions=True)

    async def call(self, program: Program) -> Sample:
        """One message out and one in."""
        request = execute_request(program.code)
        request.limits.wall_seconds = _WALL_SECONDS
        waiter: asyncio.Future[sandbox_pb2.ExecuteResponse] = asyncio.get_running_loop().create_future()
        self._waiting[request.request_id] = waiter
        started = time.perf_counter()
        self._outgoing.put_nowait(request)
        response = await waiter
        return self._service._sample(response, time.perf_counter() - started)

    def server_times(self) -> dict[str, float]:
        """Those of the service."""
        return self._service.server_times()

    async def _requests(self) -> AsyncIterator[sandbox_pb2.ExecuteRequest]:
        while (request := await self._outgoing.get()) is not None:
            yield request

    async def _read(self) -> None:
        try:
            async for response in self._call:
                self._waiting.pop(response.request_id).set_result(response)
        except Exception as error:
            for waiter in self._waiting.values():
                if not waiter.done():
                    waiter.set_exception(ServiceUnavailableError(f"the stream ended: {error}"))


class Cold:
    """A new interpreter for each program, `python -I`, without any isolation."""

    def __init__(self, threads: int) -> None:
        self.name = "cold python -I"
        self._pool = concurrent.futures.ThreadPoolExecutor(threads)

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Nothing to start."""
        yield
        self._pool.shutdown()

    async def call(self, program: Program) -> Sample:
        """One process."""
        done = await asyncio.get_running_loop().run_in_executor(self._pool, self._run, program.code)
        return Sample(done)

    def server_times(self) -> dict[str, float]:
        """None: they are children of this process."""
        return {}

    @staticmethod
    def _run(code: str) -> str:
        done = subprocess.run(
            [sys.executable, "-I", "-"], input=code, capture_output=True, text=True, timeout=_COLD_SECONDS, check=False
        )
        return done.stdout


class Http:
    """A code-judge or SandboxFusion server, ours or another.

    Args:
        kind: "code-judge" or "sandbox-fusion".
        url: of the server, without a path.
        token: bearer token, where it wants one.
    """

    def __init__(self, kind: str, url: str, token: str | None = None) -> None:
        self.name = kind
        self._kind, self._url, self._token = kind, url.rstrip("/"), token
        self._session: Any = None

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Opens a pool of connections."""
        try:
            import aiohttp
        except ImportError as error:
            raise UserInputError(
                "--against", self._kind, "an environment with aiohttp: pip install 'rstar-sandbox[http]'"
            ) from error
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        timeout = aiohttp.ClientTimeout(total=_ATTEMPT_SECONDS)
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers) as self._session:
            try:
                await self.call(Program("print(1)", "1\n"))
            except (aiohttp.ClientError, asyncio.TimeoutError, KeyError) as error:
                raise ServiceUnavailableError(f"{self._kind} at {self._url} does not answer: {error!r}") from error
            yield

    async def call(self, program: Program) -> Sample:
        """One POST."""
        if self._kind == "code-judge":
            # As rStar calls it; `/run` would give up on what has waited for four seconds.
            submission = {"sub_id": uuid.uuid4().hex, "type": "python", "solution": program.code, "input": ""}
            body: dict[str, Any] = {"type": "batch", "submissions": [submission]}
            async with self._session.post(f"{self._url}/run/long-batch", json=body) as answer:
                result = (await answer.json())["results"][0]
            return Sample(result["stdout"] or "")
        body = {"code": program.code, "language": "python", "run_timeout": _WALL_SECONDS}
        async with self._session.post(f"{self._url}/run_code", json=body) as answer:
            result = await answer.json()
        return Sample((result["run_result"] or {}).get("stdout") or "")

    def server_times(self) -> dict[str, float]:
        """None: its processes are not known."""
        return {}


def parse_other(text: str, token: str | None) -> Http:
    """A target from `code-judge=URL` or `sandbox-fusion=URL`.

    Raises:
        UserInputError: the text is neither.
    """
    kind, separator, url = text.partition("=")
    if kind not in ("code-judge", "sandbox-fusion") or not separator or not url.startswith(("http://", "https://")):
        raise UserInputError("--against", text, "code-judge=http://host:port or sandbox-fusion=http://host:port")
    return Http(kind, url, token)
