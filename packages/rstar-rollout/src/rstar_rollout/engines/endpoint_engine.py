"""Any server of OpenAI-compatible completions that takes and returns token ids, such as `vllm serve`.

For evaluation and chat, or as a member of a pool in front of servers elsewhere. The weights are the server's own:
updates are refused. Requests are streamed, so that an aborted one returns what it has.

The server must honour ``return_token_ids`` and prompts of ids. Its log-probabilities belong to the distribution that
was sampled from only if it was started so (vLLM: ``--logprobs-mode processed_logprobs``).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from rstar_protos.errors import UserInputError
from rstar_rollout.engines.base import (
    EngineDeadError,
    EngineError,
    EngineState,
    FinishReason,
    GenerationRequest,
    GenerationResult,
    TokenCallback,
    WeightSource,
    WeightUpdateError,
)
from rstar_rollout.engines.collected_turn import CollectedTurn
from rstar_rollout.engines.gate import GatedEngine
from rstar_rollout.engines.noise import turn_seed

if TYPE_CHECKING:
    import aiohttp

__all__ = ["EndpointEngine"]

_CONNECT_SECONDS = 30.0


class EndpointEngine(GatedEngine):
    """See the module text.

    Args:
        url: of the API, such as ``http://127.0.0.1:8000/v1``.
        model: the name that the server knows it by; None: the first one it lists.
        api_key: sent as bearer token.
    """

    name = "endpoint"
    deterministic = False

    def __init__(self, url: str, model: str | None = None, *, api_key: str | None = None) -> None:
        super().__init__()
        if not url.startswith(("http://", "https://")):
            raise UserInputError("endpoint", url, "an address that begins with http:// or https://")
        self._url = url.rstrip("/")
        self._model = model
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._session: aiohttp.ClientSession | None = None
        self._asleep = False
        self._tokens = 0
        self.max_model_tokens: int | None = None

    async def start(self) -> None:
        """Ask the server for its models.

        Raises:
            UserInputError: aiohttp is not installed, or the server does not have the model.
            EngineError: no such server.
        """
        try:
            import aiohttp
        except ImportError as error:
            raise UserInputError(
                "endpoint", self._url, "an installed aiohttp (pip install 'rstar-rollout[endpoint]')"
            ) from error
        # Rollouts come by the thousand; how many run at once is for the caller to say.
        self._session = aiohttp.ClientSession(
            headers=self._headers,
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS),
            read_bufsize=2**20,
        )
        try:
            async with self._session.get(f"{self._url}/models") as response:
                response.raise_for_status()
                models = (await response.json())["data"]
        except (aiohttp.ClientError, asyncio.TimeoutError, KeyError, ValueError) as error:
            raise EngineError(f"{self._url} answers no list of models: {error!r}") from error
        found = {entry["id"]: entry for entry in models}
        if self._model is None and models:
            self._model = models[0]["id"]
        if self._model not in found:
            raise UserInputError("model", self._model or "", "one of " + ", ".join(found))
        longest = found[self._model].get("max_model_len")
        self.max_model_tokens = int(longest) if longest else None

    async def generate(self, request: GenerationRequest, on_tokens: TokenCallback | None = None) -> GenerationResult:
        """Generate one turn."""
        async with self._inside(request) as aborted:
            if self._session is None:
                raise EngineError("the engine has not been started")
            turn = CollectedTurn(request, "the endpoint", 0)
            reading = asyncio.ensure_future(self._read(request, turn, on_tokens))
            abort = asyncio.ensure_future(aborted.wait())
            try:
                await asyncio.wait({reading, abort}, return_when=asyncio.FIRST_COMPLETED)
                if reading.done():
                    reading.result()
            finally:
                abort.cancel()
                reading.cancel()  # closes the connection, which ends the request at the server
                await asyncio.gather(reading, abort, return_exceptions=True)
        return turn.result()

    async def _read(self, request: GenerationRequest, turn: CollectedTurn, on_tokens: TokenCallback | None) -> None:
        import aiohttp

        assert self._session is not None
        try:
            async with self._session.post(f"{self._url}/completions", json=self._body(request)) as response:
                if response.status != 200:
                    raise EngineError(f"{self._url}: {response.status} {(await response.text())[:300]}")
                async for event in _events(response.content):
                    fresh = _take(event, turn)
                    self._tokens += len(fresh)
                    if on_tokens is not None and fresh:
                        on_tokens(fresh)
        except aiohttp.ClientError as error:
            raise EngineDeadError(f"{self._url}: {error!r}") from error
        if not turn.finished:
            raise EngineDeadError(f"{self._url}: the stream ended early")

    def _body(self, request: GenerationRequest) -> Mapping[str, Any]:
        return {
            "model": self._model,
            "prompt": list(request.token_ids),
            "max_tokens": request.max_new_tokens,
            "temperature": request.temperature,
            "top_p": request.top_p,
            "top_k": request.top_k,
            "seed": turn_seed(request.noise),
            "stop_token_ids": sorted(request.stop_ids),
            "ignore_eos": True,  # all stop tokens are named above
            "logprobs": 0 if request.log_probs else None,
            "return_token_ids": True,
            "skip_special_tokens": False,
            "stream": True,
        }

    @property
    def _refusal(self) -> str:
        return "the engine sleeps" if self._asleep else ""

    async def begin_weight_update(self, version: int, source: WeightSource) -> None:
        """Refused: the weights are the server's own."""
        raise WeightUpdateError("an endpoint has weights of its own; they cannot be updated from here")

    async def commit_weight_update(self, version: int, checksum: str) -> None:
        """Refused as well."""
        raise WeightUpdateError("an endpoint has weights of its own; they cannot be updated from here")

    async def sleep(self) -> None:
        """Send nothing until `wake`; what the server does is its own affair."""
        self._check_idle(EngineError)
        self._asleep = True

    async def wake(self) -> None:
        """Send requests again."""
        self._asleep = False

    async def state(self) -> EngineState:
        """A snapshot; the server's KV cache is not known."""
        return EngineState(
            engine_id=self._url,
            type=self.name,
            weight_version=0,
            checksum="",
            free_kv_blocks=0,
            total_kv_blocks=0,
            block_tokens=0,
            running=len(self._running),
            waiting=self._waiting,
            paused=self._closed,
        )

    @property
    def tokens_generated(self) -> int:
        """Tokens received since the start."""
        return self._tokens

    def release(self, sequence_id: str) -> None:
        """Nothing to do: the server keeps its own cache."""

    async def shutdown(self) -> None:
        """Close the connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()


def _take(event: Mapping[str, Any], turn: CollectedTurn) -> list[int]:
    """Take over an event of the stream; returns its ids.

    Raises:
        EngineError: an error of the server, or an event without token ids.
    """
    if "error" in event:
        raise EngineError(f"the endpoint failed: {event['error']}")
    if not event.get("choices"):
        return []
    choice = event["choices"][0]
    ids = choice.get("token_ids")
    if ids is None and choice.get("text"):
        raise EngineError("the endpoint returns no token ids: it has to support return_token_ids")
    ids = [int(token) for token in ids or ()]
    values = (choice.get("logprobs") or {}).get("token_logprobs") or () if ids else ()
    ended = choice.get("finish_reason")
    reason: FinishReason | None = ("stop" if ended == "stop" else "length") if ended else None
    turn.add(ids, [float(value) for value in values], reason)
    return ids


async def _events(stream: aiohttp.StreamReader) -> AsyncIterator[Mapping[str, Any]]:
    """The server-sent events of a response, up to the one that says it is done."""
    async for line in stream:
        text = line.decode("utf-8", "replace").strip()
        if not text.startswith("data:"):
            continue
        data = text.removeprefix("data:").strip()
        if data == "[DONE]":
            return
        try:
            yield json.loads(data)
        except ValueError as error:
            raise EngineError(f"the endpoint sent an event that is not JSON: {data[:200]}") from error
