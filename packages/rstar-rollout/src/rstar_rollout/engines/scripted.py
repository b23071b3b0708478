"""An engine that says what a script tells it to: for tests of everything around an engine.

It keeps the whole contract (stop tokens, lengths, weight updates, aborts, versions) without any model.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from rstar_rollout.engines.announced import AnnouncedUpdate
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
    source_folder,
)
from rstar_rollout.engines.gate import GatedEngine

__all__ = ["Script", "ScriptedEngine"]

Script = Callable[[GenerationRequest], Sequence[int]]
"""Token ids of the whole turn that the policy would write, without regard to its limit."""


class ScriptedEngine(GatedEngine):
    """See the module text.

    Args:
        script: what to generate. Whatever follows the first stop token, or exceeds the limit, is left out, and so is
            what had been said before the turn was stopped.
        deterministic: which mode of the agent loop to ask for.
        hold: requests do not finish before it is set (so that tests can cancel them).
        holds: which requests that concerns; None: all.
        said_when_aborted: tokens that a held request has said by the time it is aborted, if its turn is longer.
        kv_blocks: what the state reports as KV cache, in blocks of 16 tokens; 0: none.
        transfer_backend: that updates may come by; what they bring is believed.
    """

    name = "scripted"

    def __init__(
        self,
        script: Script,
        *,
        deterministic: bool = True,
        hold: asyncio.Event | None = None,
        holds: Callable[[GenerationRequest], bool] | None = None,
        said_when_aborted: int = 0,
        kv_blocks: int = 0,
        transfer_backend: str = "",
    ) -> None:
        super().__init__()
        self.deterministic = deterministic
        self._script = script
        self._hold = hold
        self._holds = holds
        self._said_when_aborted = said_when_aborted
        self._version = 0
        self._checksum = ""
        self._announced: AnnouncedUpdate[WeightSource] = AnnouncedUpdate()
        self._doubt = ""
        self._tokens = 0
        self._kv_blocks, self._backend = kv_blocks, transfer_backend
        self._dead = asyncio.Event()
        self._asleep = False
        self.max_model_tokens: int | None = None
        self.requests: list[GenerationRequest] = []
        self.released: set[str] = set()

    @property
    def tokens_generated(self) -> int:
        """Tokens generated since the start."""
        return self._tokens

    async def start(self) -> None:
        """Nothing to load."""

    def die(self) -> None:
        """Be gone, as an engine whose process was killed."""
        self._dead.set()

    async def generate(self, request: GenerationRequest, on_tokens: TokenCallback | None = None) -> GenerationResult:
        """Say the next line."""
        async with self._inside(request) as aborted:
            self.requests.append(request)
            if self._hold is not None and (self._holds is None or self._holds(request)):
                waits = [asyncio.ensure_future(e.wait()) for e in (self._hold, aborted, self._dead)]
                try:
                    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for wait in waits:
                        wait.cancel()
            if self._dead.is_set():
                raise EngineDeadError("the engine is gone")
            stopped = aborted.is_set()
        ids: list[int] = []
        reason: FinishReason = "length"
        for token in self._script(request)[request.noise.position :]:
            if stopped and len(ids) == self._said_when_aborted:
                reason = "aborted"
                break
            if len(ids) == request.max_new_tokens:
                break
            ids.append(token)
            if token in request.stop_ids:
                reason = "stop"
                break
        self._tokens += len(ids)
        if on_tokens is not None and ids:
            on_tokens(ids)
        return GenerationResult(tuple(ids), (0.0,) * len(ids), reason, self._version)

    @property
    def _refusal(self) -> str:
        return "the engine sleeps" if self._asleep else self._doubt

    async def begin_weight_update(self, version: int, source: WeightSource) -> None:
        """Refuse generation until the commit."""
        self._check_idle(WeightUpdateError)
        if source.backend != self._backend or not source.backend:
            source_folder(source)
        self._announced.begin(version, source)
        self._doubt = f"weight update to version {version} is under way"

    async def commit_weight_update(self, version: int, checksum: str) -> None:
        """Take the version over; an empty checksum stands for one that does not match."""
        self._announced.take(version)
        if not checksum:
            self._doubt = f"weight update to version {version} failed: checksum differs"
            raise WeightUpdateError(self._doubt)
        self._version, self._checksum, self._doubt = version, checksum, ""

    async def sleep(self) -> None:
        """Refuse to talk."""
        self._check_idle(EngineError)
        self._asleep = True

    async def wake(self) -> None:
        """Talk again."""
        self._asleep = False

    async def state(self) -> EngineState:
        """A snapshot."""
        return EngineState(
            engine_id="scripted-0",
            type=self.name,
            weight_version=self._version,
            checksum=self._checksum,
            free_kv_blocks=self._kv_blocks,
            total_kv_blocks=self._kv_blocks,
            block_tokens=16 if self._kv_blocks else 0,
            running=len(self._running),
            waiting=self._waiting,
            paused=self._closed,
            transfer_backend=self._backend,
            sleeps=True,
        )

    def release(self, sequence_id: str) -> None:
        """Remember the release."""
        self.released.add(sequence_id)

    async def shutdown(self) -> None:
        """Nothing to free."""
