"""The weights of one vLLM engine: how they arrive, and how it is known that they are the ones that were sent.

An update: generation is paused and vLLM's caches are dropped; the weights come through vLLM's weight-transfer API, by
files (`vllm_transfer.py`), by shared memory (`vllm_shared.py`) or by a backend of vLLM's own; each worker tells its
version and a digest of every parameter as it lies in its memory, and all of that has to be what the sender computed; a
short text gets the log-probabilities that the sender's policy gives it; only then is anything generated. Whatever fails
leaves the engine in doubt, and an engine in doubt generates nothing until an update succeeds.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Coroutine
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rstar_model.digests import DigestPiece, differing_parameters, join_pieces, parameter_digest
from rstar_model.weights import Canary, WeightManifest, manifest_from_json, read_manifest
from rstar_protos.errors import UserInputError
from rstar_rollout.engines.announced import AnnouncedUpdate
from rstar_rollout.engines.base import EngineDeadError, WeightSource, WeightUpdateError, source_folder
from rstar_rollout.engines.vllm_names import FOLDER_BACKEND
from rstar_rollout.engines.weight_files import folder_checksum, folder_tensors, folder_version

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

__all__ = ["VllmWeights", "canary_distance"]

_SHOWN = 3
_NO_UPDATE = 0
"""Version that workers note before the first update, whatever the folder says that they began with."""
# Mean distance from the sender's log-probabilities, nats: rounding of another kernel stays well below, weights that
# are not those of the policy are far above.
_CANARY_NATS = {"float32": 0.05, "bfloat16": 0.3}


class _Session(Enum):
    """vLLM's own state between `start_weight_update` and `finish_weight_update`."""

    CLOSED = "closed"
    OPEN = "open"
    FAILED = "failed"
    """What was to be received raised an error: the worker has closed the session, and its layers are still open."""


@dataclass(frozen=True)
class _Expected:
    """What the workers should hold."""

    version: int
    digests: dict[str, str]
    canary: Canary | None


class VllmWeights:
    """See the module text.

    Args:
        llm: the started engine.
        folder: that it loaded first.
        dtype: that it holds weights in.
        backend: of its `weight_transfer_config`.
        transfer_seconds: longest wait for what a sender sends.
    """

    def __init__(
        self,
        llm: AsyncLLM,
        folder: Path,
        dtype: str,
        backend: str = FOLDER_BACKEND,
        transfer_seconds: float = 600.0,
    ) -> None:
        self._llm, self._folder, self._dtype, self._backend = llm, folder, dtype, backend
        self._transfer_seconds = transfer_seconds
        self._workers = int(llm.vllm_config.parallel_config.world_size)
        self._stuck = ""
        self.version = folder_version(folder)
        self.checksum = folder_checksum(folder)
        self.doubt = ""
        """Why nothing may be generated now; empty: the weights are known to be the right ones."""
        self.asleep = False
        self._expected: _Expected | None = None
        self._announced: AnnouncedUpdate[WeightSource] = AnnouncedUpdate()
        self._initialised = False
        self._session = _Session.CLOSED
        self._manifest: WeightManifest | None = None

    async def begin(self, version: int, source: WeightSource) -> None:
        """Announces an update; from now on the engine is in doubt. No request may be running.

        Of a backend of vLLM's own `settings_json` holds, each if there is any: `init`, what the workers need to meet
        the sender; `update`, what is sent now, and the call returns when it has arrived, so the sender has to send at
        the same time; `manifest`, that of the weights; `workers`, in the first call of a sender. An update may take
        several such calls.

        Raises:
            WeightUpdateError: no such folder, or another backend than the engine was started with.
            EngineDeadError: what was to be received did not come in time, now or before: the workers still wait for it.
        """
        if self._stuck:
            raise EngineDeadError(self._stuck)
        if source.backend and source.backend != self._backend:
            raise WeightUpdateError(f"this engine was started for transfer by {self._backend}, not {source.backend}")
        if not source.backend:
            source_folder(source)
        first = self._announced.version != version
        self._announced.begin(version, source)
        self.doubt = f"weight update to version {version} is under way"
        if first and not self.asleep:
            await self._llm.pause_generation(mode="abort", clear_cache=True)
        elif first:
            # Memory for the cache is taken again when the weights are there: sender and engine may share the device.
            await self._llm.wake_up(["weights"])
        if source.backend:
            try:
                await self._receive(source)
            except Exception as error:
                raise self._failed(version, error) from error

    async def commit(self, version: int, checksum: str) -> None:
        """Takes over the announced weights, checks them, and ends the doubt.

        Args:
            version: that was announced.
            checksum: of the sender, see `rstar_model.weights`.

        Raises:
            WeightUpdateError: no such update was begun, or what the workers hold is not what was sent.
            EngineDeadError: a worker failed, and nothing more can be had of the engine.
        """
        source = self._announced.take(version)
        try:
            self._expected = await self._take(version, checksum, source)
            await self._check()
        except Exception as error:
            raise self._failed(version, error) from error
        self.version, self.checksum, self.doubt = version, checksum, ""

    async def verify(self) -> None:
        """Compares what the workers hold now with what they should hold; a difference puts the engine in doubt.

        Raises:
            WeightUpdateError: they differ; says in what.
        """
        if self._expected is None:
            digests = await asyncio.to_thread(_folder_digests, self._folder, self._dtype)
            self._expected = _Expected(_NO_UPDATE, digests, None)
        try:
            await self._check()
        except Exception as error:
            raise self._failed(self.version, error) from error

    async def sleep(self, level: int) -> None:
        """Gives memory back: 1 moves the weights to the host, 2 drops them; caches go with either. On a CPU vLLM keeps
        its memory.
        """
        self.asleep = True
        await self._llm.pause_generation(mode="abort", clear_cache=True)
        await self._llm.sleep(level)

    async def wake(self) -> None:
        """Takes the memory again.

        Raises:
            WeightUpdateError: weights did not come back as they were: they have to be sent anew.
        """
        if self.asleep:
            await self._llm.wake_up()
            self.asleep = False
            await self.verify()

    async def _receive(self, source: WeightSource) -> None:
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest, WeightTransferUpdateRequest

        settings: dict[str, Any] = json.loads(source.settings_json or "{}")
        if "workers" in settings:
            await self._put_away()
        if "manifest" in settings:
            self._manifest = manifest_from_json(settings["manifest"], self._folder)
        if "init" in settings:
            request = WeightTransferInitRequest(settings["init"])
            await self._arrival(self._llm.init_weight_transfer_engine(request), self._transfer_seconds)
            self._initialised = True
        if "update" in settings:
            if not self._initialised:
                raise WeightUpdateError("the sender has not said how to meet it")
            if self._session is _Session.CLOSED:
                await self._llm.start_weight_update()
            self._session = _Session.FAILED
            update = WeightTransferUpdateRequest(settings["update"])
            await self._arrival(self._llm.update_weights(update), self._transfer_seconds)
            self._session = _Session.OPEN

    async def _put_away(self) -> None:
        """A sender begins: what an earlier one left in the midst of an update goes first."""
        if self._session is _Session.FAILED:  # vLLM's layers still expect weights, its worker does not
            await self._llm.start_weight_update()
        if self._session is not _Session.CLOSED:
            await self._llm.finish_weight_update()
            self._session = _Session.CLOSED

    async def _arrival(self, receiving: Coroutine[Any, Any, None], seconds: float | None = None) -> None:
        """Waits until the workers have something, and for what a sender has to do its part for not for ever.

        Raises:
            EngineDeadError: it did not come in time, and workers cannot be called back from where they wait; or one of
                several workers failed, and vLLM takes the answers of the others for those to its next question.
        """
        self._stuck = "its workers wait for a sender that has given up"
        try:
            await asyncio.wait_for(receiving, seconds)
        except asyncio.TimeoutError:
            self._stuck = f"weights did not arrive within {seconds:g} s"
            raise EngineDeadError(self._stuck) from None
        except Exception as error:
            self._stuck = "" if self._workers == 1 else f"a worker failed to take weights: {error}"
            if self._stuck:
                raise EngineDeadError(self._stuck) from error
            raise
        self._stuck = ""

    async def _take(self, version: int, checksum: str, source: WeightSource) -> _Expected:
        if source.backend:
            manifest, self._manifest = self._manifest, None
            if manifest is None:
                raise WeightUpdateError("the sender has not told what it sent")
            if manifest.checksum != checksum or manifest.version != version:
                raise WeightUpdateError("the sender's manifest is of another update")
            expected = _Expected(version, dict(manifest.digests), manifest.canary)
            await self._llm.finish_weight_update()
            self._session = _Session.CLOSED
        else:
            folder = source_folder(source)
            await self._put_away()
            expected = await asyncio.to_thread(_expected_of, folder, version, checksum, self._dtype)
            await self._load_folder(folder)
        await self._llm.update_weight_version(str(version))
        await self._llm.collective_rpc("rstar_finish", args=(version,))
        if self.asleep:
            await self._llm.wake_up(["kv_cache"])
            self.asleep = False
        # Cached keys and values belong to the old weights.
        if not await self._llm.reset_prefix_cache():
            raise WeightUpdateError("the prefix cache could not be dropped")
        return expected

    async def _load_folder(self, folder: Path) -> None:
        from vllm.distributed.weight_transfer.base import WeightTransferInitRequest, WeightTransferUpdateRequest

        if self._backend != FOLDER_BACKEND:
            # Started for a backend of vLLM's own, and yet sent a folder: a new engine that catches up, for one.
            await self._llm.collective_rpc("reload_weights", kwargs={"weights_path": str(folder)})
            return
        if not self._initialised:
            await self._llm.init_weight_transfer_engine(WeightTransferInitRequest({}))
            self._initialised = True
        await self._llm.start_weight_update()
        await self._arrival(self._llm.update_weights(WeightTransferUpdateRequest({"path": str(folder)})))
        await self._llm.finish_weight_update()

    async def _check(self) -> None:
        """Version and digests of every worker, then the canary; generation of others is still refused."""
        expected = self._expected
        assert expected is not None, "set before"
        pieces: list[DigestPiece] = []
        for rank, (version, found) in enumerate(await self._llm.collective_rpc("rstar_loaded")):
            if version != expected.version:
                raise WeightUpdateError(f"worker {rank} has version {version}, not {expected.version}")
            pieces += [DigestPiece(n, d, tuple(at), tuple(shape), int(value)) for n, d, at, shape, value in found]
        different = differing_parameters(expected.digests, join_pieces(pieces))
        if different:
            shown = "; ".join(different[:_SHOWN])
            raise WeightUpdateError(f"{len(different)} parameters are not what was sent: {shown}")
        await self._llm.resume_generation()
        if expected.canary is not None:
            found_log_probs = await self._canary_log_probs(expected.canary)
            distance = canary_distance(expected.canary, found_log_probs)
            if not distance <= _CANARY_NATS.get(self._dtype, _CANARY_NATS["bfloat16"]):
                raise WeightUpdateError(f"log-probabilities of the canary are {distance:.3f} nats off")

    async def _canary_log_probs(self, canary: Canary) -> list[float]:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        parameters = SamplingParams(
            max_tokens=1, prompt_logprobs=0, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY
        )
        prompt: Any = {"prompt_token_ids": list(canary.token_ids)}
        name = f"canary-{id(canary)}-{self.version}"
        outputs: list[Any] = [output async for output in self._llm.generate(prompt, parameters, name)]
        if not outputs or outputs[-1].prompt_logprobs is None:
            raise WeightUpdateError("vLLM gave no log-probabilities of the canary")
        ids = canary.token_ids[1:]
        return [float(entry[token].logprob) for token, entry in zip(ids, outputs[-1].prompt_logprobs[1:], strict=True)]

    def _failed(self, version: int, error: Exception) -> WeightUpdateError | EngineDeadError:
        self._announced.drop()
        self.doubt = f"weights of version {version} are in doubt: {error}"
        return error if isinstance(error, WeightUpdateError | EngineDeadError) else WeightUpdateError(str(error))


def canary_distance(canary: Canary, log_probs: list[float]) -> float:
    """Mean |engine - sender| over the canary's tokens, nats."""
    pairs = list(zip(canary.log_probs, log_probs, strict=True))
    return sum(abs(a - b) for a, b in pairs) / max(1, len(pairs))


def _expected_of(folder: Path, version: int, checksum: str, dtype: str) -> _Expected:
    """What a folder's weights have to look like in the workers.

    Raises:
        WeightUpdateError: the folder is not what the sender wrote.
    """
    manifest = None
    with contextlib.suppress(UserInputError):
        manifest = read_manifest(folder)
    if manifest is not None and manifest.digests and manifest.dtype == dtype:
        if manifest.checksum != checksum:
            raise WeightUpdateError(f"checksum of {folder} is {manifest.checksum}, the sender's is {checksum}")
        return _Expected(version, dict(manifest.digests), manifest.canary)
    found = folder_checksum(folder)
    if found != checksum:
        raise WeightUpdateError(f"checksum of {folder} is {found}, the sender's is {checksum}")
    return _Expected(version, _folder_digests(folder, dtype), manifest.canary if manifest is not None else None)


def _folder_digests(folder: Path, dtype: str) -> dict[str, str]:
    """Digests of a folder's tensors, computed here, in the dtype of the engine."""
    import torch

    target = getattr(torch, dtype)
    return {name: parameter_digest(tensor.to(target)) for name, tensor in folder_tensors(folder).items()}
