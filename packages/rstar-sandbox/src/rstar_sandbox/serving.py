"""Starting a service in one of its roles: everything in one process, a dispatcher, or a worker node.

In the role `all` clients, queue and slots meet in one process, with no hop between them; it is the default and the
fastest way on one machine. A dispatcher has the same front and queue, and worker nodes attach to it.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass

import grpc.aio

from rstar_protos.errors import UserInputError
from rstar_protos.sandbox.v1 import sandbox_pb2, sandbox_pb2_grpc
from rstar_protos.service import ServerSecurity, ServeSettings, serve
from rstar_sandbox import metrics
from rstar_sandbox.dispatcher.dispatcher import Dispatcher, DispatchSettings
from rstar_sandbox.dispatcher.local_node import LocalNode
from rstar_sandbox.dispatcher.worker import Worker, WorkerSettings
from rstar_sandbox.dispatcher.worker_service import WorkerServicer
from rstar_sandbox.executor import IsolationError
from rstar_sandbox.front import Front
from rstar_sandbox.pool import WorkerPool
from rstar_sandbox.service import SandboxServicer
from rstar_sandbox.session_table import SessionTable
from rstar_sandbox.settings import SandboxSettings
from rstar_sandbox.zygote_process import ZygoteProcess

__all__ = ["HttpSettings", "serve_all", "serve_dispatcher", "serve_worker"]


@dataclass(frozen=True)
class HttpSettings:
    """The HTTP interface beside gRPC."""

    listen: str
    """`host:port`; TLS and token are those of the gRPC address."""

    def checked(self, security: ServerSecurity) -> HttpSettings:
        """Itself, when the address is usable with this security.

        Raises:
            UserInputError: an unusable address, one that needs TLS and a token, or aiohttp is not installed.
        """
        try:
            address = ServeSettings(listen=self.listen, security=security).address()
        except UserInputError as error:
            raise UserInputError.message(f"--http: {error}") from error
        if address.socket_path is not None:
            raise UserInputError("--http", self.listen, "host:port")
        if importlib.util.find_spec("aiohttp") is None:
            raise UserInputError("--http", self.listen, "an installed aiohttp (pip install 'rstar-sandbox[http]')")
        return self


async def serve_all(
    settings: SandboxSettings,
    serving: ServeSettings,
    dispatch: DispatchSettings | None = None,
    http: HttpSettings | None = None,
    zygote: ZygoteProcess | None = None,
) -> None:
    """Serves clients from this machine's slots until told to stop; see `rstar_protos.service.serve`.

    Args:
        settings: how programs run.
        serving: how the service listens.
        dispatch: how programs wait.
        http: also over HTTP.
        zygote: one started before gRPC was loaded.
    """
    dispatcher = Dispatcher(dispatch)
    async with _slots(settings, zygote) as (pool, sessions):
        node = LocalNode(pool, sessions, freed=dispatcher.give)
        dispatcher.attach(node)
        dispatcher.give(node, node.slots)
        front = Front(dispatcher, settings.remembered_results, settings.remembered_bytes)
        await _serve_front(front, serving, http, [])


async def serve_dispatcher(
    serving: ServeSettings,
    dispatch: DispatchSettings | None = None,
    http: HttpSettings | None = None,
    worker_token: str | None = None,
) -> None:
    """Serves clients from worker nodes that attach.

    Args:
        serving: how the service listens, for clients and workers alike.
        dispatch: how programs wait, and how workers are watched.
        http: also over HTTP.
        worker_token: what workers must present beyond what clients do.
    """
    dispatcher = Dispatcher(dispatch)
    await _serve_front(Front(dispatcher), serving, http, [WorkerServicer(dispatcher, worker_token)])


async def serve_worker(
    settings: SandboxSettings,
    serving: ServeSettings,
    worker_settings: WorkerSettings,
    zygote: ZygoteProcess | None = None,
) -> None:
    """Runs programs for a dispatcher; the address of its own is for health and metrics only.

    Args:
        settings: how programs run.
        serving: how health and metrics listen, and how long running programs may go on at the end.
        worker_settings: where the dispatcher is.
        zygote: one started before gRPC was loaded.
    """
    async with _slots(settings, zygote) as (pool, sessions):
        worker = Worker(worker_settings, pool, sessions)
        metrics.watch_worker(worker)
        working = asyncio.ensure_future(worker.run())
        try:
            await serve(
                serving, "sandbox-worker", lambda _: None, [], on_stop=lambda: worker.drain(serving.drain_seconds)
            )
        finally:
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)


@contextlib.asynccontextmanager
async def _slots(
    settings: SandboxSettings, zygote: ZygoteProcess | None
) -> AsyncIterator[tuple[WorkerPool, SessionTable]]:
    pool = WorkerPool(settings, zygote)
    pool.start()
    sessions = SessionTable(pool)
    metrics.watch_executor(pool)
    try:
        if settings.require_level is not None:
            # Before anybody is told that there is a service.
            await _settled(pool, settings.require_level)
        yield pool, sessions
    finally:
        sessions.close_all()
        await pool.stop()


async def _settled(pool: WorkerPool, level: str) -> None:
    try:
        await pool.ready()
    except IsolationError as error:
        raise UserInputError.message(f"--require-level {level}: {error}") from error


async def _serve_front(
    front: Front, serving: ServeSettings, http: HttpSettings | None, workers: list[WorkerServicer]
) -> None:
    def register(server: grpc.aio.Server) -> None:
        sandbox_pb2_grpc.add_SandboxServiceServicer_to_server(SandboxServicer(front), server)
        for servicer in workers:
            sandbox_pb2_grpc.add_SandboxWorkerServiceServicer_to_server(servicer, server)

    metrics.watch_dispatcher(front.dispatcher)
    async with contextlib.AsyncExitStack() as stack:
        if http is not None:
            from rstar_sandbox.web.server import http_server

            address = await stack.enter_async_context(http_server(front, http.listen, serving.security))
            print(json.dumps({"service": "sandbox-http", "http": address, "pid": os.getpid()}), flush=True)
        try:
            await serve(serving, "sandbox", register, [sandbox_pb2.DESCRIPTOR])
        finally:
            front.dispatcher.close()
