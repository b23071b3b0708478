"""Server-side interceptors: the bearer-token check and the call metrics."""

from __future__ import annotations

import hmac
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio

from rstar_protos.service import metrics

__all__ = ["MetricsInterceptor", "TokenInterceptor"]

_Continuation = Callable[[grpc.HandlerCallDetails], Awaitable["grpc.RpcMethodHandler[Any, Any] | None"]]


class TokenInterceptor(grpc.aio.ServerInterceptor):
    """Refuses calls without `authorization: Bearer <token>`, health and reflection included."""

    def __init__(self, token: str) -> None:
        self._expected = f"Bearer {token}".encode()

    async def intercept_service(self, continuation: _Continuation, details: grpc.HandlerCallDetails) -> Any:
        """Passes the call on, or answers UNAUTHENTICATED."""
        handler = await continuation(details)
        for key, value in details.invocation_metadata or ():
            given = value if isinstance(value, bytes) else value.encode()
            if key == "authorization" and hmac.compare_digest(given, self._expected):
                return handler
        return _same_shape(handler, _refuse, _refuse_stream) if handler else None


class MetricsInterceptor(grpc.aio.ServerInterceptor):
    """Counts calls by method and status, and measures how long they take."""

    async def intercept_service(self, continuation: _Continuation, details: grpc.HandlerCallDetails) -> Any:
        """Wraps the handler of the call."""
        handler = await continuation(details)
        if handler is None:
            return None
        method, inner = details.method, _behaviour(handler)

        async def unary(request: Any, context: Any) -> Any:
            with _measured(method, context):
                return await inner(request, context)

        async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
            with _measured(method, context):
                result = inner(request, context)
                if hasattr(result, "__aiter__"):
                    async for response in result:
                        yield response
                else:
                    # A coroutine that writes by itself through context.write().
                    await result

        return _same_shape(handler, unary, stream)


class _measured:  # noqa: N801 - used as a context manager, like a function
    def __init__(self, method: str, context: Any) -> None:
        self._method, self._context, self._start = method, context, time.perf_counter()

    def __enter__(self) -> None:
        metrics.CALLS_IN_PROGRESS.labels(self._method).inc()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        metrics.CALLS_IN_PROGRESS.labels(self._method).dec()
        metrics.CALL_SECONDS.labels(self._method).observe(time.perf_counter() - self._start)
        metrics.CALLS_TOTAL.labels(self._method, _status_name(self._context, kind)).inc()


def _status_name(context: Any, error: type[BaseException] | None) -> str:
    code = context.code()
    if isinstance(code, int):
        code = next((status for status in grpc.StatusCode if status.value[0] == code), None)
    if error is None:
        return code.name if code else "OK"
    if code and code is not grpc.StatusCode.OK:
        return str(code.name)
    # CancelledError is a BaseException: the client went away or its deadline passed.
    return "UNKNOWN" if issubclass(error, Exception) else "CANCELLED"


async def _refuse(request: Any, context: Any) -> Any:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, "a valid bearer token is required")


async def _refuse_stream(request: Any, context: Any) -> AsyncIterator[Any]:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, "a valid bearer token is required")
    yield  # makes this an asynchronous generator


def _behaviour(handler: Any) -> Callable[..., Any]:
    kinds = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")
    behaviour: Callable[..., Any] = next(getattr(handler, kind) for kind in kinds if getattr(handler, kind))
    return behaviour


def _same_shape(handler: Any, unary: Callable[..., Any], stream: Callable[..., Any]) -> Any:
    make = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }[handler.request_streaming, handler.response_streaming]
    return make(
        stream if handler.response_streaming else unary,
        request_deserializer=handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )
