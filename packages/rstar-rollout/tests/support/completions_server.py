"""A small OpenAI-compatible completions server over any engine, for tests of the endpoint engine."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from rstar_rollout.engines.base import Engine, GenerationRequest, NoiseKey


class CompletionsServer:
    """Answers /v1/models and streamed /v1/completions; ``broken`` makes it leave out what a test wants missing."""

    def __init__(self, engine: Engine, *, broken: str = "", max_model_len: int | None = 4096) -> None:
        self._engine = engine
        self._broken = broken
        self._max_model_len = max_model_len
        self._count = 0
        self.bodies: list[dict] = []
        self.disconnected = asyncio.Event()

    async def models(self, request: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": "policy", "max_model_len": self._max_model_len}]})

    async def completions(self, http: web.Request) -> web.StreamResponse:
        body = await http.json()
        self.bodies.append(body)
        if self._broken == "status":
            return web.json_response({"error": "no"}, status=503)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(http)
        self._count += 1
        request = GenerationRequest(
            request_id=f"http-{self._count}",
            sequence_id=f"http-{self._count}",
            token_ids=tuple(body["prompt"]),
            max_new_tokens=body["max_tokens"],
            temperature=body["temperature"],
            top_p=body["top_p"],
            top_k=body["top_k"],
            stop_ids=frozenset(body["stop_token_ids"]),
            noise=NoiseKey(body["seed"], "http", 0, 0),
        )
        pieces: asyncio.Queue[list[int]] = asyncio.Queue()
        task = asyncio.create_task(self._engine.generate(request, lambda ids: pieces.put_nowait(list(ids))))
        sent = 0
        try:
            while not task.done() or not pieces.empty():
                getting = asyncio.ensure_future(pieces.get())
                await asyncio.wait({getting, task}, return_when=asyncio.FIRST_COMPLETED)
                if not getting.done():
                    getting.cancel()
                    continue
                ids = getting.result()
                sent += len(ids)
                await self._send(response, ids, None)
            result = await task
            if self._broken == "cut":
                return response
            await self._send(response, [], result.finish_reason)
            await response.write(b"data: [DONE]\n\n")
        except (asyncio.CancelledError, ConnectionError):
            task.cancel()
            self.disconnected.set()
            raise
        return response

    async def _send(self, response: web.StreamResponse, ids: list[int], reason: str | None) -> None:
        choice: dict[str, object] = {"index": 0, "text": "x" * len(ids), "finish_reason": reason}
        if self._broken != "ids":
            choice["token_ids"] = ids
        if self._broken != "log_probs":
            choice["logprobs"] = {"token_logprobs": [-math.log(259.0)] * len(ids)}
        await response.write(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")


@asynccontextmanager
async def serving(server: CompletionsServer) -> AsyncIterator[str]:
    """The server on a free port; yields the address of its API."""
    app = web.Application()
    app.add_routes([web.get("/v1/models", server.models), web.post("/v1/completions", server.completions)])
    # Tests look at what a lost connection leads to.
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=1.0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
    try:
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        await runner.cleanup()
