"""The HTTP interface: routes, token, TLS. What it serves goes through the same front as gRPC."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from aiohttp import web

from rstar_protos.errors import UserInputError
from rstar_protos.sandbox.v1 import sandbox_pb2
from rstar_protos.service import ListenAddress, ServerSecurity
from rstar_sandbox.front import Front
from rstar_sandbox.refusals import REFUSALS, Refusal
from rstar_sandbox.web import code_judge, sandbox_fusion
from rstar_sandbox.web.code_judge import Submission

__all__ = ["http_server"]

_MAX_BODY_BYTES = 256 * 1024**2
_SHUTDOWN_SECONDS = 30.0
_RETRY_SECONDS = 1.0
_OPEN_PATHS = ("/ping", "/v1/ping")
"""Health checks of load balancers carry no token, and learn nothing."""

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@contextlib.asynccontextmanager
async def http_server(front: Front, listen: str, security: ServerSecurity) -> AsyncIterator[str]:
    """Serves while the context lasts; gives its address.

    Args:
        front: answers the calls.
        listen: `host:port`, checked.
        security: certificates and token, those of the gRPC address.

    Raises:
        UserInputError: the address cannot be bound.
    """
    address = ListenAddress.parse(listen)
    runner = web.AppRunner(
        _application(front, security.token),
        access_log=None,
        shutdown_timeout=_SHUTDOWN_SECONDS,
        handler_cancellation=True,  # a client that leaves frees what it held
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, address.host, address.port, ssl_context=_tls(security))
        try:
            await site.start()
        except OSError as error:
            raise UserInputError("--http", listen, f"an address that can be bound ({error.strerror})") from error
        host, port = runner.addresses[0][:2]
        yield f"{'https' if security.tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"
    finally:
        await runner.cleanup()


def _application(front: Front, token: str | None) -> web.Application:
    routes = _Routes(front)
    middlewares = [_token_check(token), _refusing] if token else [_refusing]
    application = web.Application(client_max_size=_MAX_BODY_BYTES, middlewares=middlewares)
    application.add_routes(
        [
            web.get("/ping", routes.ping),
            web.get("/v1/ping", routes.ping),
            web.get("/status", routes.status),
            web.post("/run_code", routes.run_code),
            web.post("/run", routes.run),
            web.post("/judge", routes.judge),
            *(web.post(f"/run/{kind}", routes.run_batch) for kind in ("batch", "long-batch")),
            *(web.post(f"/judge/{kind}", routes.judge_batch) for kind in ("batch", "long-batch")),
        ]
    )
    return application


class _Routes:
    def __init__(self, front: Front) -> None:
        self._front = front

    async def ping(self, _: web.Request) -> web.Response:
        return web.json_response("pong")

    async def status(self, _: web.Request) -> web.Response:
        capacity = self._front.capacity()
        return web.json_response({"queue": capacity.queued, "num_workers": capacity.slots})

    async def run_code(self, request: web.Request) -> web.Response:
        """SandboxFusion's."""
        program = sandbox_fusion.request_from_body(await _body(request))
        try:
            response = await self._front.execute(program, _client_of(request))
        except UserInputError:
            raise
        except REFUSALS as error:
            refusal = Refusal.of(error)
            if refusal.retry_after_milliseconds:
                raise _too_many(refusal) from error
            return web.json_response(sandbox_fusion.sandbox_error(refusal.details))
        return web.json_response(sandbox_fusion.response_body(response))

    async def run(self, request: web.Request) -> web.Response:
        """code-judge's, one program."""
        return web.json_response(await self._judge(Submission.from_body(await _body(request)), _client_of(request)))

    async def judge(self, request: web.Request) -> web.Response:
        """code-judge's, one program, the verdict only."""
        result = await self._judge(Submission.from_body(await _body(request)), _client_of(request))
        return web.json_response(code_judge.without_output(result))

    async def run_batch(self, request: web.Request) -> web.Response:
        """code-judge's, many programs."""
        sub_id, results = await self._judge_all(request)
        return web.json_response({"sub_id": sub_id, "results": results})

    async def judge_batch(self, request: web.Request) -> web.Response:
        """code-judge's, many programs, the verdicts only."""
        sub_id, results = await self._judge_all(request)
        return web.json_response({"sub_id": sub_id, "results": [code_judge.without_output(each) for each in results]})

    async def _judge_all(self, request: web.Request) -> tuple[str, list[dict[str, Any]]]:
        sub_id, submissions = code_judge.batch_from_body(await _body(request))
        client = _client_of(request)
        results: list[dict[str, Any]] = [{}] * len(submissions)
        numbers = iter(range(len(submissions)))

        async def work() -> None:
            for number in numbers:
                results[number] = await self._judge(submissions[number], client)

        # As many at once as a stream has: a batch never fills the queue.
        width = min(len(submissions), max(16, 4 * self._front.dispatcher.slots))
        await _all_or_none(work() for _ in range(width))
        return sub_id, results

    async def _judge(self, submission: Submission, client: str) -> dict[str, Any]:
        response: sandbox_pb2.ExecuteResponse | None = None
        if submission.request is not None:
            try:
                response = await self._front.execute(submission.request, client, wait_for_room=True)
            except UserInputError:
                raise
            except REFUSALS:
                response = None
        return submission.result(response)


def _token_check(token: str) -> Any:
    expected = f"Bearer {token}".encode()

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
        if request.path not in _OPEN_PATHS and not hmac.compare_digest(given, expected):
            raise web.HTTPUnauthorized(text="a valid bearer token is required", headers={"WWW-Authenticate": "Bearer"})
        return await handler(request)

    return check


async def _body(request: web.Request) -> dict[str, Any]:
    try:
        body = await request.json()
    except (ValueError, RecursionError, UnicodeDecodeError) as error:
        raise web.HTTPBadRequest(text="the body must be JSON") from error
    if not isinstance(body, dict):
        raise web.HTTPUnprocessableEntity(text="the body must be a JSON object")
    return body


def _client_of(request: web.Request) -> str:
    """For fairness: HTTP clients open many connections, so it is the machine that counts."""
    return f"http {request.remote}"


@web.middleware
async def _refusing(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except UserInputError as error:
        return web.json_response({"detail": str(error)}, status=422)


def _too_many(refusal: Refusal) -> web.HTTPTooManyRequests:
    seconds = max(_RETRY_SECONDS, refusal.retry_after_milliseconds / 1000)
    return web.HTTPTooManyRequests(text=refusal.details, headers={"Retry-After": str(int(seconds + 0.999))})


def _tls(security: ServerSecurity) -> ssl.SSLContext | None:
    if security.certificate is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(security.certificate, security.private_key)
    if security.client_ca is not None:
        context.load_verify_locations(security.client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


async def _all_or_none(works: Any) -> None:
    """Runs all to their end; the first that fails, or a client that leaves, ends the others."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
