"""What engines have in common whoever generates for them: who may enter, who is inside, and who has to leave early."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence

from rstar_rollout.engines.base import (
    EngineError,
    EngineNotReadyError,
    EngineState,
    GenerationRequest,
    GenerationResult,
    TokenCallback,
    WeightUpdateError,
)

__all__ = ["GatedEngine"]


class GatedEngine(ABC):
    """Pause, refusal and abort of `rstar_rollout.engines.base.Engine`, for an engine to inherit.

    A subclass says why nothing may be generated (`_refusal`), generates within `_inside`, and ends requests early
    when their event is set. One that counts its requests itself calls `_enter` alone and has an `abort` of its own.
    """

    def __init__(self) -> None:
        self._resumed = asyncio.Event()
        self._resumed.set()
        self._waiting = 0
        self._running: dict[str, asyncio.Event] = {}

    @property
    def _refusal(self) -> str:
        """Why generation is refused now; empty: it is not."""
        return ""

    @abstractmethod
    async def generate(self, request: GenerationRequest, on_tokens: TokenCallback | None = None) -> GenerationResult:
        """Generate one turn."""

    async def generate_batch(self, requests: Sequence[GenerationRequest]) -> list[GenerationResult]:
        """Generate several turns at once."""
        return list(await asyncio.gather(*(self.generate(request) for request in requests)))

    @abstractmethod
    async def state(self) -> EngineState:
        """A snapshot."""

    async def states(self) -> list[EngineState]:
        """That of this engine alone."""
        return [await self.state()]

    async def _enter(self, *requests: GenerationRequest) -> None:
        """Wait while the engine is paused.

        Raises:
            EngineNotReadyError: generation is refused.
            UserInputError: a request without tokens, or without room for any.
        """
        self._waiting += len(requests)
        try:
            await self._resumed.wait()
        finally:
            self._waiting -= len(requests)
        if self._refusal:
            raise EngineNotReadyError(self._refusal)
        for request in requests:
            request.check()

    @contextlib.asynccontextmanager
    async def _inside(self, request: GenerationRequest) -> AsyncIterator[asyncio.Event]:
        """Enter and be counted as running; the event is set when the request is aborted."""
        await self._enter(request)
        aborted = self._running[request.request_id] = asyncio.Event()
        try:
            yield aborted
        finally:
            del self._running[request.request_id]

    def abort(self, request_ids: Sequence[str]) -> None:
        """End requests early; those that do not run are no matter."""
        for request_id in request_ids:
            if request_id in self._running:
                self._running[request_id].set()

    async def pause(self) -> None:
        """Let new requests wait until `resume`."""
        self._resumed.clear()

    async def resume(self) -> None:
        """Take requests again."""
        self._resumed.set()

    @property
    def _busy(self) -> bool:
        """Requests are running."""
        return bool(self._running)

    @property
    def _closed(self) -> bool:
        """A request that came now would wait or be refused."""
        return not self._resumed.is_set() or bool(self._refusal)

    def _check_idle(self, error: type[EngineError] | type[WeightUpdateError]) -> None:
        """Raises `error` while requests are running."""
        if self._busy:
            raise error("requests are running: pause first")
