"""The protocol that all engines share: token ids in, token ids with log-probabilities out.

An engine knows nothing of turns, tools or text. It owns the weights it generates with and the version of them,
and refuses to generate while that version is in doubt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from rstar_protos.errors import InfrastructureError, RStarError, UserInputError

__all__ = [
    "Admitting",
    "Engine",
    "EngineDeadError",
    "EngineError",
    "EngineNotReadyError",
    "EngineState",
    "FinishReason",
    "GenerationRequest",
    "GenerationResult",
    "NoiseKey",
    "TokenCallback",
    "WeightSource",
    "WeightUpdateError",
    "source_folder",
]

FinishReason = Literal["stop", "length", "aborted"]
TokenCallback = Callable[[Sequence[int]], None]
"""Told of the ids that have been generated since it was told last."""


class EngineError(InfrastructureError):
    """The engine failed; the rollout it worked on is excluded, never scored."""


class EngineDeadError(EngineError):
    """The engine is gone and answers nothing any more; a pool moves its rollouts to another."""


class EngineNotReadyError(RStarError):
    """Generation is refused: a weight update is under way or has failed."""


class WeightUpdateError(RStarError):
    """The weights of an update could not be taken over; generation is refused until one succeeds."""


@dataclass(frozen=True)
class NoiseKey:
    """What sampling noise is keyed by. With the position in the turn added, no two draws share a key.

    ``position``: tokens of the turn that were drawn before it was stopped.
    """

    seed: int
    problem_id: str
    sample_index: int
    turn: int
    position: int = 0


@dataclass(frozen=True)
class GenerationRequest:
    """One turn to generate.

    ``sequence_id`` names the rollout: turns of one sequence extend each other, so an engine may keep the KV
    cache of a sequence until it is released. ``max_new_tokens`` is at least 1. ``temperature`` 0 is greedy.
    ``top_p`` 1 and ``top_k`` 0 are off. ``response_tokens``: how many of the ids, at their end, follow the prompt; a
    scheduler counts prompts that rollouts share once.
    """

    request_id: str
    sequence_id: str
    token_ids: Sequence[int]
    max_new_tokens: int
    temperature: float
    top_p: float
    top_k: int
    stop_ids: frozenset[int]
    noise: NoiseKey
    log_probs: bool = True
    response_tokens: int = 0

    def check(self) -> None:
        """What every engine needs of a request.

        Raises:
            UserInputError: there is nothing to go on from, or no room for a token.
        """
        if not self.token_ids:
            raise UserInputError("token_ids", "empty", "at least one token to go on from")
        if self.max_new_tokens < 1:
            raise UserInputError("max_new_tokens", self.max_new_tokens, "a whole number from 1")


@dataclass(frozen=True)
class GenerationResult:
    """Generated ids, the stop token included when it was generated.

    ``log_probs`` has one entry per id: natural logarithms under the distribution that was sampled from, that is
    at the sampling temperature (temperature 0: at temperature 1) and after top-p and top-k.
    """

    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]
    finish_reason: FinishReason
    weight_version: int
    queue_seconds: float = 0.0
    """How long the rollout waited for an engine before this turn."""
    cached_tokens: int | None = None
    """Tokens of the request whose KV was found in a cache; None: the engine does not tell."""


@dataclass(frozen=True)
class WeightSource:
    """Where the weights of an update lie: a Hugging Face folder, or an engine's own transfer backend."""

    path: str | None = None
    backend: str = ""
    settings_json: str = ""


def source_folder(source: WeightSource) -> Path:
    """The folder of a file source.

    Raises:
        WeightUpdateError: another kind of source, or no such folder.
    """
    if source.path is None:
        raise WeightUpdateError(f"transfer backend {source.backend!r} is not supported here; use a folder")
    folder = Path(source.path)
    if not folder.is_dir():
        raise WeightUpdateError(f"no such folder: {folder}")
    return folder


@dataclass(frozen=True)
class EngineState:
    """A snapshot for schedulers and operators. ``checksum`` is that of the loaded weights."""

    engine_id: str
    type: str
    weight_version: int
    checksum: str
    free_kv_blocks: int
    total_kv_blocks: int
    block_tokens: int
    running: int
    waiting: int
    paused: bool
    workers: int = 1
    """Processes that hold a part of the weights; 0: none that could receive any now."""
    transfer_backend: str = ""
    """That weights can come by beside files."""
    sleeps: bool = False
    """It was started so that `sleep` gives memory back."""
    held_out: str = ""
    """Why it takes no work although the others do."""


@runtime_checkable
class Admitting(Protocol):
    """An engine at which a rollout has to wait for room before its first turn."""

    async def admit(self, request: GenerationRequest) -> None:
        """Wait until there is room for the rollout that begins with this request, or it is aborted."""


@runtime_checkable
class Engine(Protocol):
    """What an engine must do. All methods are called from one event loop."""

    name: str
    deterministic: bool
    """True: the caller sends whole rounds through `generate_batch`, and equal rounds give equal results."""

    max_model_tokens: int | None
    """Longest sequence, prompt included; None: no limit. Known after `start`."""

    async def start(self) -> None:
        """Load the weights; nothing else may be called before this has returned."""

    async def generate(self, request: GenerationRequest, on_tokens: TokenCallback | None = None) -> GenerationResult:
        """Generate one turn. Cancelling the call aborts the request.

        Args:
            request: what to generate.
            on_tokens: told of ids as they come, stop tokens included; all of them by the time the call returns.

        Raises:
            EngineNotReadyError: weights in doubt, or the engine sleeps.
            EngineDeadError: the engine is gone.
            EngineError: the engine failed.
        """

    async def generate_batch(self, requests: Sequence[GenerationRequest]) -> list[GenerationResult]:
        """Generate a round of turns; results in the order of the requests. Cancelling aborts them all."""

    async def pause(self) -> None:
        """Take no new work; requests that come in wait until `resume`."""

    async def resume(self) -> None:
        """Take work again."""

    async def begin_weight_update(self, version: int, source: WeightSource) -> None:
        """Refuse generation from now on until a commit succeeds.

        Raises:
            WeightUpdateError: requests are running, or the source is of a kind this engine cannot read.
        """

    async def commit_weight_update(self, version: int, checksum: str) -> None:
        """Load the announced weights, drop every cache, check them, allow generation.

        Raises:
            WeightUpdateError: no such update was begun, or what was loaded is not what the sender had.
        """

    async def sleep(self) -> None:
        """Give back the memory of caches and, where the engine can, of weights; generation is refused until `wake`.

        Raises:
            EngineError: requests are running.
        """

    async def wake(self) -> None:
        """Take the memory again. Weights that were given up have to be sent anew before anything is generated."""

    async def state(self) -> EngineState:
        """A snapshot."""

    async def states(self) -> list[EngineState]:
        """A snapshot of each engine that this one consists of; of itself where it is a single one."""

    @property
    def tokens_generated(self) -> int:
        """Tokens generated since the start, those of running requests included."""

    def abort(self, request_ids: Sequence[str]) -> None:
        """End requests early; they return what they have, with finish reason "aborted"."""

    def release(self, sequence_id: str) -> None:
        """Forget the caches of a sequence that will not go on."""

    async def shutdown(self) -> None:
        """Free everything; running requests fail with `EngineError`."""
