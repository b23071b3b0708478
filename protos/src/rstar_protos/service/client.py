"""Channels to services, and the one retry rule that all clients follow."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import grpc
import grpc.aio

from rstar_protos.errors import ServiceUnavailableError, UserInputError
from rstar_protos.service.addresses import Target, parse_endpoint
from rstar_protos.service.security import ClientSecurity
from rstar_protos.service.settings import DEFAULT_MAX_MESSAGE_BYTES

__all__ = ["RETRY_AFTER_KEY", "abort_with_retry_hint", "call_with_retry", "open_channel", "open_sync_channel"]

RETRY_AFTER_KEY = "retry-after-ms"
"""Trailing metadata of RESOURCE_EXHAUSTED: back-pressure that passes. Without it the call is not retried."""

_OPTIONS: tuple[tuple[str, Any], ...] = (
    ("grpc.max_receive_message_length", DEFAULT_MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", DEFAULT_MAX_MESSAGE_BYTES),
    # A restarted service is found again within a second rather than after gRPC's default of up to two minutes.
    # grpc.min_reconnect_backoff_ms stays at its default: it is also the time that one connection attempt, the TLS
    # handshake included, may take.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Every channel its own connections: a dead one of an earlier service never serves a new channel.
    ("grpc.use_local_subchannel_pool", 1),
)

Response = TypeVar("Response")


def open_channel(endpoint: str, security: ClientSecurity | None = None) -> grpc.aio.Channel:
    """An asyncio channel to `unix:/path`, `grpc://host:port` or `grpcs://host:port`.

    Raises:
        UserInputError: unusable endpoint or unreadable credentials.
    """
    target, security = _checked(endpoint, security)
    interceptors = _aio_token_interceptors(security.token) if security.token else None
    if target.tls:
        return grpc.aio.secure_channel(
            target.grpc_target, security.credentials(), options=_OPTIONS, interceptors=interceptors
        )
    return grpc.aio.insecure_channel(target.grpc_target, options=_OPTIONS, interceptors=interceptors)


def open_sync_channel(endpoint: str, security: ClientSecurity | None = None) -> grpc.Channel:
    """The blocking counterpart of `open_channel`."""
    target, security = _checked(endpoint, security)
    if target.tls:
        channel = grpc.secure_channel(target.grpc_target, security.credentials(), options=_OPTIONS)
    else:
        channel = grpc.insecure_channel(target.grpc_target, options=_OPTIONS)
    if security.token:
        channel = grpc.intercept_channel(channel, _SyncTokenInterceptor(security.token))
    return channel


def _checked(endpoint: str, security: ClientSecurity | None) -> tuple[Target, ClientSecurity]:
    """The target and its security; certificates are never dropped in silence."""
    target, security = parse_endpoint(endpoint), security or ClientSecurity()
    if not target.tls and (security.ca or security.certificate):
        raise UserInputError("endpoint", endpoint, "grpcs://host:port, where certificates are given")
    return target, security


async def call_with_retry(
    method: Callable[..., Awaitable[Response]],
    request: Any,
    *,
    timeout_s: float | None = None,
    patience_s: float = 60.0,
) -> Response:
    """Calls a unary method, retrying while the service is away or pushes back.

    Safe because every request that changes something carries a request id. Retried are UNAVAILABLE and
    RESOURCE_EXHAUSTED with a retry hint; any other status is raised as it is.

    Args:
        method: a unary-unary stub method.
        request: its message.
        timeout_s: deadline of one attempt, seconds.
        patience_s: how long to go on trying, seconds.

    Raises:
        ServiceUnavailableError: the patience is used up.
        grpc.aio.AioRpcError: any other status.
    """
    give_up, delay = time.monotonic() + patience_s, 0.05
    while True:
        try:
            return await method(request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            wait = _retry_delay(error, delay)
            if wait is None:
                raise
            if time.monotonic() + wait > give_up:
                raise ServiceUnavailableError(
                    f"no answer within {patience_s:g} s: {error.code().name}: {error.details()}"
                ) from error
        await asyncio.sleep(wait)
        delay = min(delay * 2, 1.0)


async def abort_with_retry_hint(context: grpc.aio.ServicerContext[Any, Any], details: str, retry_after_ms: int) -> None:
    """Refuses a call for lack of room, telling the client when to come back. Does not return."""
    await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, details, ((RETRY_AFTER_KEY, str(retry_after_ms)),))


def _retry_delay(error: grpc.aio.AioRpcError, default: float) -> float | None:
    if error.code() == grpc.StatusCode.UNAVAILABLE:
        return default
    if error.code() == grpc.StatusCode.RESOURCE_EXHAUSTED:
        for key, value in error.trailing_metadata() or ():
            if key == RETRY_AFTER_KEY:
                return int(value) / 1000
    return None


def _bearer(token: str) -> tuple[str, str]:
    return ("authorization", f"Bearer {token}")


class _AioTokenBase:
    def __init__(self, token: str) -> None:
        self._header = _bearer(token)

    def _with_token(self, details: Any) -> Any:
        metadata = grpc.aio.Metadata(*(tuple(details.metadata or ())), self._header)
        return details._replace(metadata=metadata)


class _UnaryUnaryToken(_AioTokenBase, grpc.aio.UnaryUnaryClientInterceptor):
    async def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        return await continuation(self._with_token(details), request)


class _UnaryStreamToken(_AioTokenBase, grpc.aio.UnaryStreamClientInterceptor):
    async def intercept_unary_stream(self, continuation: Any, details: Any, request: Any) -> Any:
        return await continuation(self._with_token(details), request)


class _StreamUnaryToken(_AioTokenBase, grpc.aio.StreamUnaryClientInterceptor):
    async def intercept_stream_unary(self, continuation: Any, details: Any, requests: Any) -> Any:
        return await continuation(self._with_token(details), requests)


class _StreamStreamToken(_AioTokenBase, grpc.aio.StreamStreamClientInterceptor):
    async def intercept_stream_stream(self, continuation: Any, details: Any, requests: Any) -> Any:
        return await continuation(self._with_token(details), requests)


def _aio_token_interceptors(token: str) -> Sequence[Any]:
    return [kind(token) for kind in (_UnaryUnaryToken, _UnaryStreamToken, _StreamUnaryToken, _StreamStreamToken)]


class _SyncDetails(grpc.ClientCallDetails):
    def __init__(self, details: Any, metadata: tuple[tuple[str, str], ...]) -> None:
        self.method, self.timeout, self.credentials = details.method, details.timeout, details.credentials
        self.wait_for_ready, self.compression = details.wait_for_ready, details.compression
        self.metadata = metadata


class _SyncTokenInterceptor(
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
    grpc.StreamStreamClientInterceptor,
):
    def __init__(self, token: str) -> None:
        self._header = _bearer(token)

    def _intercept(self, continuation: Any, details: Any, request: Any) -> Any:
        return continuation(_SyncDetails(details, (*(details.metadata or ()), self._header)), request)

    intercept_unary_unary = _intercept  # type: ignore[assignment]  # one function serves all four
    intercept_unary_stream = _intercept  # type: ignore[assignment]  # as above
    intercept_stream_unary = _intercept  # type: ignore[assignment]  # as above
    intercept_stream_stream = _intercept  # type: ignore[assignment]  # as above
