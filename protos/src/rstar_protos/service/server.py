"""Serving: what every rstar service does the same way.

Health, reflection, token check, metrics, bounded messages, a ready line, graceful drain, and an end when the parent
is gone. A package adds its servicers and nothing else.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

import grpc
import grpc.aio
from google.protobuf.descriptor import FileDescriptor
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from prometheus_client import start_http_server

from rstar_protos.errors import UserInputError
from rstar_protos.service.addresses import ListenAddress
from rstar_protos.service.interceptors import MetricsInterceptor, TokenInterceptor
from rstar_protos.service.settings import ServeSettings

__all__ = ["RunningServer", "serve", "start_server"]

Register = Callable[[grpc.aio.Server], "Awaitable[None] | None"]
OnStop = Callable[[], "Awaitable[None] | None"]

_FORCED_EXIT_SECONDS = 5.0
_MAX_PENDING_CALLS = 1_000_000
_MAX_PENDING_SECONDS = 3600


class RunningServer:
    """A started server: its address, and how to drain it."""

    def __init__(self, server: grpc.aio.Server, servicer: health.aio.HealthServicer, listening: str) -> None:
        self._server = server
        self._health = servicer
        self.listening = listening
        """Where clients find it, as a client-side endpoint."""

    async def stop(self, drain_seconds: float) -> None:
        """Says NOT_SERVING, takes no new call, and lets running ones go on for `drain_seconds`."""
        await self._health.enter_graceful_shutdown()
        await self._server.stop(drain_seconds)


async def start_server(
    settings: ServeSettings, register: Register, descriptors: Sequence[FileDescriptor]
) -> RunningServer:
    """Starts a service in the running event loop.

    Args:
        settings: address, security, limits.
        register: adds the servicers to the server.
        descriptors: the .proto files of these servicers, for health and reflection.

    Raises:
        UserInputError: the address is unusable or in use, or needs TLS and a token.
    """
    address = settings.address()
    credentials = settings.security.credentials()
    address.check_free()
    interceptors: list[grpc.aio.ServerInterceptor] = [MetricsInterceptor()]
    if settings.security.token:
        interceptors.append(TokenInterceptor(settings.security.token))
    server = grpc.aio.server(
        interceptors=interceptors,
        options=(
            ("grpc.max_receive_message_length", settings.max_message_bytes),
            ("grpc.max_send_message_length", settings.max_message_bytes),
            # Otherwise two servers share one port without a word.
            ("grpc.so_reuseport", 0),
            # A flood of calls is for the service to refuse, with a hint when to come back. Left alone, gRPC drops
            # what has not been taken yet, beyond a thousand calls or after half a minute, as CANCELLED.
            ("grpc.server.max_pending_requests", _MAX_PENDING_CALLS),
            ("grpc.server.max_pending_requests_hard_limit", _MAX_PENDING_CALLS),
            ("grpc.server_max_unrequested_time_in_server", _MAX_PENDING_SECONDS),
        ),
    )
    registered = register(server)
    if inspect.isawaitable(registered):
        await registered
    names = [name for file in descriptors for name in _service_names(file)]
    servicer = health.aio.HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    reflection.enable_server_reflection((*names, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
    listening = _bind(server, address, credentials)
    await server.start()
    for name in ("", *names):
        await servicer.set(name, health_pb2.HealthCheckResponse.SERVING)
    return RunningServer(server, servicer, listening)


async def serve(
    settings: ServeSettings,
    name: str,
    register: Register,
    descriptors: Sequence[FileDescriptor],
    on_stop: OnStop | None = None,
) -> None:
    """Serves until SIGTERM, SIGINT or the end of the parent, then drains.

    Prints one JSON line `{"service", "listening", "pid"}` on standard output when ready. A second signal ends the
    drain at once.

    Args:
        settings: address, security, limits.
        name: the name in the ready line.
        register: adds the servicers to the server.
        descriptors: the .proto files of these servicers.
        on_stop: frees what the servicers hold, after the drain.

    Raises:
        UserInputError: as `start_server`.
    """
    stopping, hurry = asyncio.Event(), asyncio.Event()
    _install_signals(stopping, hurry)
    # The port of the metrics first: a service that cannot have it makes no servicer and is found by nobody.
    with _metrics_endpoint(settings.metrics_port):
        running = await start_server(settings, register, descriptors)
        if settings.watch_parent:
            _watch_parent(asyncio.get_running_loop(), stopping, hurry)
        print(json.dumps({"service": name, "listening": running.listening, "pid": os.getpid()}), flush=True)
        await stopping.wait()
        drain = asyncio.ensure_future(running.stop(0 if hurry.is_set() else settings.drain_seconds))
        rushed = asyncio.ensure_future(hurry.wait())
        await asyncio.wait({drain, rushed}, return_when=asyncio.FIRST_COMPLETED)
        if not drain.done():
            await running.stop(0)
        rushed.cancel()
        await drain
        if on_stop is not None:
            stopped = on_stop()
            if inspect.isawaitable(stopped):
                await stopped


def _service_names(file: FileDescriptor) -> Iterator[str]:
    for service in file.services_by_name.values():
        yield service.full_name


def _bind(server: grpc.aio.Server, address: ListenAddress, credentials: grpc.ServerCredentials | None) -> str:
    if address.socket_path and not os.path.isdir(os.path.dirname(address.socket_path) or "."):
        raise UserInputError("--listen", address.grpc_target, "a socket in a folder that exists")
    # A private socket: only this user may connect, whatever the umask was.
    previous = os.umask(0o177) if address.socket_path else None
    try:
        if credentials is not None:
            port = server.add_secure_port(address.grpc_target, credentials)
        else:
            port = server.add_insecure_port(address.grpc_target)
    except RuntimeError as error:
        raise UserInputError("--listen", address.grpc_target, f"an address that can be bound ({error})") from error
    finally:
        if previous is not None:
            os.umask(previous)
    if address.socket_path:
        return f"unix:{address.socket_path}"
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"{'grpcs' if credentials else 'grpc'}://{host}:{port}"


def _install_signals(stopping: asyncio.Event, hurry: asyncio.Event) -> None:
    def stop() -> None:
        if stopping.is_set():
            hurry.set()
        stopping.set()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError, RuntimeError):
            loop.add_signal_handler(number, stop)


@contextlib.contextmanager
def _metrics_endpoint(port: int | None) -> Iterator[None]:
    """Serves Prometheus metrics on a loopback port meanwhile; None: does not."""
    if port is None:
        yield
        return
    try:
        endpoint, thread = start_http_server(port, addr="127.0.0.1")
    except OSError as error:
        raise UserInputError("--metrics-port", port, f"a free port ({error.strerror})") from error
    try:
        yield
    finally:
        endpoint.shutdown()
        endpoint.server_close()
        thread.join()


def _watch_parent(loop: asyncio.AbstractEventLoop, stopping: asyncio.Event, hurry: asyncio.Event) -> None:
    """Ends the service when standard input reaches its end, which a killed parent causes too."""

    def end() -> None:
        hurry.set()
        stopping.set()

    def watch() -> None:
        # os.read, not sys.stdin: a buffered reader blocked at interpreter exit aborts the process.
        with contextlib.suppress(OSError):
            while os.read(0, 4096):
                pass
        # Nobody is left to wait for a loop that hangs.
        killer: Any = threading.Timer(_FORCED_EXIT_SECONDS, os._exit, (1,))
        killer.daemon = True
        killer.start()
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(end)

    threading.Thread(target=watch, name="watch-parent", daemon=True).start()
