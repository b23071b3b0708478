"""SandboxWorkerService: where worker nodes attach to a dispatcher."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import itertools
import logging
from typing import Any

import grpc
import grpc.aio

from rstar_protos.errors import UserInputError
from rstar_protos.sandbox.v1 import sandbox_pb2, sandbox_pb2_grpc
from rstar_sandbox.dispatcher.dispatcher import Dispatcher
from rstar_sandbox.dispatcher.link import Pulse, until_first
from rstar_sandbox.dispatcher.remote_node import RemoteNode
from rstar_sandbox.levels import check_level
from rstar_sandbox.refusals import refuse

__all__ = ["WORKER_TOKEN_KEY", "WorkerServicer"]

WORKER_TOKEN_KEY = "rstar-worker-token"  # noqa: S105 - the name of a metadata key
"""Metadata of Attach: a worker sees every program and makes up every answer, so it may need a secret of its own."""

_log = logging.getLogger(__name__)


class WorkerServicer(sandbox_pb2_grpc.SandboxWorkerServiceServicer):
    """Takes workers in and drops them when their stream ends or falls silent.

    Args:
        dispatcher: that places calls on them.
        token: what a worker must present; None: whoever may call the service may attach.
    """

    def __init__(self, dispatcher: Dispatcher, token: str | None = None) -> None:
        self._dispatcher = dispatcher
        self._token = token
        self._leases = itertools.count(1)
        self._attached: dict[str, asyncio.Task[None]] = {}

    async def Attach(self, request_iterator: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        """Serves one worker for as long as its stream lasts."""
        await self._check_token(context)
        first = await _read(context)
        if first is None:
            return
        try:
            _check(first.hello)
        except UserInputError as error:
            await refuse(context, error)
        await self._replace(first.hello.name)
        node, pulse = RemoteNode(first.hello, self._leases), Pulse(self._dispatcher.settings.silence_seconds)
        await context.write(sandbox_pb2.AttachResponse(silence_seconds=pulse.silence_seconds))
        self._dispatcher.attach(node)
        self._dispatcher.give(node, first.credits)
        _log.info("worker %s attached: %d slots, %s", node.name, node.slots, node.isolation)
        serving = asyncio.ensure_future(self._serve(node, context, pulse))
        self._attached[node.name] = serving
        try:
            await serving
        except asyncio.CancelledError:
            # The client's stream ended, or a newer stream of the same worker took its place.
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
        finally:
            if self._attached.get(node.name) is serving:
                del self._attached[node.name]
            self._dispatcher.detach(node, lost=True)
            node.lose()
            _log.info("worker %s is gone", node.name)

    async def _serve(self, node: RemoteNode, context: grpc.aio.ServicerContext[Any, Any], pulse: Pulse) -> None:
        async def read() -> None:
            while (message := await _read(context)) is not None:
                pulse.heard()
                node.take(message.answers)
                if message.draining:
                    self._dispatcher.revoke(node)
                elif message.credits:
                    self._dispatcher.give(node, message.credits)

        async def write() -> None:
            while True:
                await context.write(await node.next_message(pulse.beat_seconds))

        async def listen() -> None:
            await pulse.lost()
            _log.warning("worker %s has been silent for %g s", node.name, pulse.silence_seconds)

        await until_first(read(), write(), listen())

    async def _replace(self, name: str) -> None:
        """A worker that comes again lost its first stream, whether or not we noticed."""
        earlier = self._attached.pop(name, None)
        if earlier is not None:
            earlier.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({earlier})

    async def _check_token(self, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        if self._token is None:
            return
        for key, value in context.invocation_metadata() or ():
            given = value if isinstance(value, bytes) else value.encode()
            if key == WORKER_TOKEN_KEY and hmac.compare_digest(given, self._token.encode()):
                return
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, "a valid worker token is required")


def _check(hello: sandbox_pb2.WorkerHello) -> None:
    """Refuses a worker that cannot be used, or whose isolation could not be compared with that of others.

    Raises:
        UserInputError: no name, no slots, or no level that is known here.
    """
    if not hello.name or not hello.slots:
        raise UserInputError.message("hello: the first message names the worker and slots")
    check_level("hello.isolation", hello.isolation, auto=False)


async def _read(context: grpc.aio.ServicerContext[Any, Any]) -> sandbox_pb2.AttachRequest | None:
    message = await context.read()
    return None if message is grpc.aio.EOF else message
