"""The embedded engine: transformers models with our own generation loop, in one dedicated thread.

Deterministic mode (the default): `generate_batch` calls run one after another, each as a round of its own whose
batches depend on its requests only. Otherwise requests join the running batch as they come.

All model work happens in one thread of its own, so the event loop that serves gRPC never waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rstar_protos.errors import UserInputError
from rstar_rollout.engines.announced import AnnouncedUpdate
from rstar_rollout.engines.base import (
    EngineError,
    EngineState,
    GenerationRequest,
    GenerationResult,
    TokenCallback,
    WeightSource,
    WeightUpdateError,
    source_folder,
)
from rstar_rollout.engines.gate import GatedEngine
from rstar_rollout.engines.model_thread import ModelThread

__all__ = ["TransformersEngine", "TransformersSettings"]

_BLOCK_TOKENS = 16  # KV memory is reported in blocks of this many tokens


@dataclass(frozen=True)
class TransformersSettings:
    """Settings of the transformers engine."""

    dtype: str = "bfloat16"
    """Type of the weights and the KV cache: bfloat16 or float32."""
    deterministic: bool = True
    max_batch: int = 96
    """Sequences generated at once."""
    kv_gib: float = 3.0
    """Memory for the KV cache of running sequences, GiB; as much again may be used for waiting ones."""
    threads: int | None = None
    """CPU threads of the model thread; None: torch's own choice."""
    device: str = "cpu"
    max_model_tokens: int | None = None
    """Longest sequence, prompt included; None: what the model was made for."""


class TransformersEngine(GatedEngine):
    """See the module text. Args: ``model``, a Hugging Face folder, and the settings."""

    name = "transformers"

    def __init__(self, model: str | Path, settings: TransformersSettings | None = None) -> None:
        super().__init__()
        self._folder = Path(model)
        self._settings = settings or TransformersSettings()
        if self._settings.dtype not in ("bfloat16", "float32"):
            raise UserInputError("dtype", self._settings.dtype, "bfloat16 or float32")
        if self._settings.max_batch < 1:
            raise UserInputError("max_batch", self._settings.max_batch, "a whole number from 1")
        self.deterministic = self._settings.deterministic
        self.max_model_tokens: int | None = None
        self._worker = ModelThread(self._settings.deterministic)
        self._checksum = ""
        self._version = 0
        self._announced: AnnouncedUpdate[Path] = AnnouncedUpdate()
        self._doubt = ""
        self._asleep = False

    async def start(self) -> None:
        """Load the weights."""
        self._worker.start()
        self._version, self._checksum = await self._worker.call(self._load)

    def _load(self) -> tuple[int, str]:
        import torch

        from rstar_rollout.engines.continuous_batch import ContinuousBatch
        from rstar_rollout.engines.weight_files import load_model

        # In this thread: the number of threads is a setting of the thread that starts parallel regions.
        if self._settings.threads:
            torch.set_num_threads(self._settings.threads)
        loaded = load_model(self._folder, self._settings.dtype, self._settings.device)
        self._model = loaded.model
        limits = [n for n in (loaded.max_tokens, self._settings.max_model_tokens) if n is not None]
        self.max_model_tokens = min(limits, default=None)
        self._worker.batch = ContinuousBatch(
            loaded.model,
            max_batch=self._settings.max_batch,
            kv_bytes=int(self._settings.kv_gib * 2**30),
        )
        self._worker.batch.weight_version = loaded.version
        return loaded.version, loaded.checksum

    async def generate(self, request: GenerationRequest, on_tokens: TokenCallback | None = None) -> GenerationResult:
        """Generate one turn."""
        if on_tokens is None:
            return (await self.generate_batch([request]))[0]
        loop = asyncio.get_running_loop()

        def tell(ids: Sequence[int]) -> None:
            loop.call_soon_threadsafe(on_tokens, ids)

        self._worker.watch(request.request_id, tell)
        try:
            return (await self.generate_batch([request]))[0]
        finally:
            self._worker.watch(request.request_id, None)

    async def generate_batch(self, requests: Sequence[GenerationRequest]) -> list[GenerationResult]:
        """Generate a round of turns."""
        await self._enter(*requests)
        if not requests:
            return []
        future = self._worker.submit(requests)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self._worker.abort([request.request_id for request in requests])
            raise

    @property
    def _refusal(self) -> str:
        return "the engine sleeps" if self._asleep else self._doubt

    @property
    def _busy(self) -> bool:
        return bool(self._worker.running or self._worker.waiting)

    async def begin_weight_update(self, version: int, source: WeightSource) -> None:
        """Refuse generation until the update is committed; only files are a source here."""
        self._check_idle(WeightUpdateError)
        self._announced.begin(version, source_folder(source))
        self._doubt = f"weight update to version {version} is under way"

    async def commit_weight_update(self, version: int, checksum: str) -> None:
        """Load the folder named at the beginning and check it against the sender's checksum."""
        folder = self._announced.take(version)
        try:
            await self._worker.call(lambda: self._take_weights(folder, version, checksum))
        except Exception as error:
            self._doubt = f"weight update to version {version} failed: {error}"
            raise error if isinstance(error, WeightUpdateError) else WeightUpdateError(str(error)) from error
        self._version, self._checksum, self._doubt = version, checksum, ""

    def _take_weights(self, folder: Path, version: int, checksum: str) -> None:
        from rstar_rollout.engines.weight_files import take_weights

        take_weights(self._model, folder, checksum)
        batch = self._worker.batch
        # Caches hold keys and values of the old weights.
        batch.drop_caches()
        batch.weight_version = version

    async def sleep(self) -> None:
        """Give back the memory of all caches; the weights stay."""
        self._check_idle(EngineError)
        self._asleep = True
        await self._worker.call(lambda: self._worker.batch.drop_caches())

    async def wake(self) -> None:
        """Generate again."""
        self._asleep = False

    async def state(self) -> EngineState:
        """A snapshot."""
        batch = self._worker.batch_or_none
        total = batch.total_tokens // _BLOCK_TOKENS if batch else 0
        reserved = batch.reserved_tokens // _BLOCK_TOKENS if batch else 0
        return EngineState(
            engine_id="transformers-0",
            type=self.name,
            weight_version=self._version,
            checksum=self._checksum,
            free_kv_blocks=max(0, total - reserved),
            total_kv_blocks=total,
            block_tokens=_BLOCK_TOKENS,
            running=self._worker.running,
            waiting=self._worker.waiting + self._waiting,
            paused=self._closed,
            sleeps=True,
        )

    @property
    def tokens_generated(self) -> int:
        """Tokens generated since the start."""
        return self._worker.batch_or_none.tokens_generated if self._worker.batch_or_none else 0

    def abort(self, request_ids: Sequence[str]) -> None:
        """End requests early."""
        self._worker.abort(request_ids)

    def release(self, sequence_id: str) -> None:
        """Forget the parked KV of a sequence."""
        self._worker.release(sequence_id)

    async def shutdown(self) -> None:
        """Stop the model thread."""
        await asyncio.get_running_loop().run_in_executor(None, self._worker.stop)
