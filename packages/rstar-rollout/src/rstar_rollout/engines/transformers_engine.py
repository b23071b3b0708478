"""The embedded engine: transformers models with our own generation loop, in one dedicated thread.

Deterministic mode (the default): `generate_batch` calls run one after another, each as a round of its own whose
batches depend on its requests only. Otherwise requests join the running batch as they come.

All model work happens in one thread of its own, so the event loop that serves gRPC never waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rstar_protos.errors import UserInputError
from rstar_rollout.engines.base import (
    EngineDeadError,
    EngineError,
    EngineNotReadyError,
    EngineState,
    GenerationRequest,
    GenerationResult,
    TokenCallback,
    WeightSource,
    WeightUpdateError,
    source_folder,
)

if TYPE_CHECKING:
    from rstar_rollout.engines.continuous_batch import ContinuousBatch

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


class TransformersEngine:
    """See the module text. Args: ``model``, a Hugging Face folder, and the settings."""

    name = "transformers"

    def __init__(self, model: str | Path, settings: TransformersSettings | None = None) -> None:
        self._folder = Path(model)
        self._settings = settings or TransformersSettings()
        if self._settings.dtype not in ("bfloat16", "float32"):
            raise UserInputError("dtype", self._settings.dtype, "bfloat16 or float32")
        if self._settings.max_batch < 1:
            raise UserInputError("max_batch", self._settings.max_batch, "a whole number from 1")
        self.deterministic = self._settings.deterministic
        self.max_model_tokens: int | None = None
        self._worker = _Worker(self._settings.deterministic)
        self._checksum = ""
        self._version = 0
        self._pending: tuple[int, Path] | None = None
        self._doubt = ""
        self._asleep = False
        self._resumed = asyncio.Event()
        self._resumed.set()

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
        await self._resumed.wait()
        if self._asleep:
            raise EngineNotReadyError("the engine sleeps")
        if self._doubt:
            raise EngineNotReadyError(self._doubt)
        for request in requests:
            if request.max_new_tokens < 1 or not request.token_ids:
                raise UserInputError("max_new_tokens", request.max_new_tokens, "at least 1, after at least one token")
        if not requests:
            return []
        future = self._worker.submit(requests)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            self._worker.abort([request.request_id for request in requests])
            raise

    async def pause(self) -> None:
        """Let new requests wait until `resume`."""
        self._resumed.clear()

    async def resume(self) -> None:
        """Take work again."""
        self._resumed.set()

    async def begin_weight_update(self, version: int, source: WeightSource) -> None:
        """Refuse generation until the update is committed; only files are a source here."""
        if self._worker.running or self._worker.waiting:
            raise WeightUpdateError("requests are running: pause first")
        self._pending = (version, source_folder(source))
        self._doubt = f"weight update to version {version} is under way"

    async def commit_weight_update(self, version: int, checksum: str) -> None:
        """Load the folder named at the beginning and check it against the sender's checksum."""
        if self._pending is None or self._pending[0] != version:
            begun = "none" if self._pending is None else self._pending[0]
            raise WeightUpdateError(f"commit of version {version}, but the update begun is {begun}")
        folder, self._pending = self._pending[1], None
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
        if self._worker.running or self._worker.waiting:
            raise EngineError("requests are running: pause first")
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
            waiting=self._worker.waiting,
            paused=not self._resumed.is_set() or bool(self._doubt) or self._asleep,
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


@dataclass
class _Job:
    """Requests that were handed over together, and what they came to."""

    requests: Sequence[GenerationRequest]
    future: Future[list[GenerationResult]]
    results: dict[str, GenerationResult]


class _Worker:
    """The model thread: runs jobs and calls; everything that touches the model happens here."""

    def __init__(self, rounds: bool) -> None:
        self._rounds = rounds
        self._wake = threading.Condition()
        self._inbox: deque[_Job] = deque()
        self._calls: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._aborts: set[str] = set()
        self._releases: deque[str] = deque()
        self._jobs: dict[str, _Job] = {}
        self._watchers: dict[str, TokenCallback] = {}
        self._told: dict[str, int] = {}
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="rstar-engine", daemon=True)
        self.batch_or_none: ContinuousBatch | None = None

    @property
    def batch(self) -> ContinuousBatch:
        """The batch; there is one as soon as the weights are loaded."""
        if self.batch_or_none is None:
            raise EngineError("the engine has not been started")
        return self.batch_or_none

    @batch.setter
    def batch(self, value: ContinuousBatch) -> None:
        self.batch_or_none = value

    @property
    def running(self) -> int:
        """Sequences in the batch."""
        return self.batch_or_none.running if self.batch_or_none else 0

    @property
    def waiting(self) -> int:
        """Sequences that have no row yet."""
        queued = sum(len(job.requests) for job in list(self._inbox))
        return queued + (self.batch_or_none.waiting if self.batch_or_none else 0)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the step it is in; open jobs fail."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join()

    def submit(self, requests: Sequence[GenerationRequest]) -> Future[list[GenerationResult]]:
        """Queue a job."""
        future: Future[list[GenerationResult]] = Future()
        with self._wake:
            if self._stopping or not self._thread.is_alive():
                raise EngineDeadError("the engine is stopped")
            self._inbox.append(_Job(requests, future, {}))
            self._wake.notify()
        return future

    def abort(self, request_ids: Sequence[str]) -> None:
        """End requests early."""
        with self._wake:
            self._aborts.update(request_ids)
            self._wake.notify()

    def release(self, sequence_id: str) -> None:
        """Forget a sequence between two steps."""
        with self._wake:
            self._releases.append(sequence_id)
            self._wake.notify()

    def watch(self, request_id: str, watcher: TokenCallback | None) -> None:
        """Have a request's ids told as they come, from the model thread; None: no longer."""
        with self._wake:
            if watcher is None:
                self._watchers.pop(request_id, None)
                self._told.pop(request_id, None)
            else:
                self._watchers[request_id], self._told[request_id] = watcher, 0

    async def call(self, function: Callable[[], Any]) -> Any:
        """Run a function in the thread when no sequence is being generated."""
        future: Future[Any] = Future()
        with self._wake:
            if self._stopping:
                raise EngineError("the engine is stopped")
            self._calls.append((function, future))
            self._wake.notify()
        return await asyncio.wrap_future(future)

    def _run(self) -> None:
        while self._prepare():
            batch = self.batch_or_none
            if batch is None or batch.idle:
                continue
            try:
                finished = batch.step()
            except Exception as error:
                self._fail_all(EngineError(f"generation failed: {error!r}"))
                batch.reset()
                continue
            if self._watchers:
                self._tell([*batch.progress(), *((name, result.token_ids) for name, result in finished)])
            for request_id, result in finished:
                self._deliver(request_id, result)
        self._fail_all(EngineError("the engine was stopped"))

    def _prepare(self) -> bool:
        """Wait for something to do and take it over from the other threads; False: stop."""
        with self._wake:
            while not (self._stopping or self._inbox or self._calls or self._releases or self._busy()):
                self._wake.wait()
            if self._stopping:
                return False
            batch = self.batch_or_none
            self._take_aborts()
            while self._releases and batch is not None:
                batch.release(self._releases.popleft())
            self._releases.clear()
            call = self._calls.popleft() if self._calls and not self._busy() else None
            if call is None and batch is not None and not self._calls:
                self._take_jobs(batch)
        if call is not None:
            _run_call(*call)
        return True

    def _busy(self) -> bool:
        return self.batch_or_none is not None and not self.batch_or_none.idle

    def _take_aborts(self) -> None:
        if not self._aborts:
            return
        # A job that is not in the batch yet keeps its abort until it is.
        queued = {request.request_id for job in self._inbox for request in job.requests}
        if self.batch_or_none is not None:
            self.batch_or_none.abort(self._aborts - queued)
        self._aborts &= queued

    def _take_jobs(self, batch: ContinuousBatch) -> None:
        while self._inbox and (batch.idle or not self._rounds):
            if self._rounds:
                batch.forget_prompts()
            job = self._inbox.popleft()
            for request in job.requests:
                self._jobs[request.request_id] = job
            batch.submit(job.requests)
            batch.abort(self._aborts)
            self._aborts -= {request.request_id for request in job.requests}

    def _deliver(self, request_id: str, result: GenerationResult) -> None:
        job = self._jobs.pop(request_id)
        job.results[request_id] = result
        if len(job.results) == len(job.requests):
            _settle(job.future, [job.results[request.request_id] for request in job.requests])

    def _tell(self, progress: Sequence[tuple[str, Sequence[int]]]) -> None:
        """Hand new ids to those who watch; a request's last ids are told before its result is delivered."""
        with self._wake:
            for request_id, ids in progress:
                watcher = self._watchers.get(request_id)
                if watcher is not None and len(ids) > self._told[request_id]:
                    watcher(tuple(ids[self._told[request_id] :]))
                    self._told[request_id] = len(ids)

    def _fail_all(self, error: EngineError) -> None:
        with self._wake:
            jobs = {id(job): job for job in [*self._jobs.values(), *self._inbox]}
            calls = list(self._calls)
            self._jobs.clear()
            self._inbox.clear()
            self._calls.clear()
        for future in [*(job.future for job in jobs.values()), *(future for _, future in calls)]:
            with contextlib.suppress(Exception):  # already cancelled
                future.set_exception(error)


def _run_call(function: Callable[[], Any], future: Future[Any]) -> None:
    try:
        result = function()
    except Exception as error:
        future.set_exception(error)
    else:
        _settle(future, result)


def _settle(future: Future[Any], result: Any) -> None:
    # The waiting coroutine may have been cancelled meanwhile.
    if future.set_running_or_notify_cancel():
        future.set_result(result)
