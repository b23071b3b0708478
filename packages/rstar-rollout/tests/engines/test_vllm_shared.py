"""Weights that a sender shares block by block with real vLLM workers (CPU), and senders that stop half-way."""

from __future__ import annotations

import json
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from rstar_rollout.engines.base import (
    EngineDeadError,
    EngineNotReadyError,
    GenerationRequest,
    NoiseKey,
    WeightSource,
    WeightUpdateError,
)
from rstar_rollout.engines.vllm_engine import VllmEngine, VllmSettings
from rstar_rollout.engines.vllm_names import SHARED_MEMORY_BACKEND

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1800)]

pytest.importorskip("vllm")

DTYPE = "bfloat16"


@pytest.fixture(params=[1, 2], ids=["one-worker", "two-workers"])
async def engine(request: pytest.FixtureRequest, tiny_model: Path) -> AsyncIterator[VllmEngine]:
    settings = VllmSettings(
        dtype=DTYPE,
        kv_gib=0.25,
        max_model_tokens=512,
        tensor_parallel=request.param,
        cpu_threads="nobind",
        transfer_backend=SHARED_MEMORY_BACKEND,
    )
    made = VllmEngine(tiny_model, settings)
    await made.start()
    yield made
    await made.shutdown()


def ask(index: int) -> GenerationRequest:
    noise = NoiseKey(1, "p", index, 0)
    return GenerationRequest(f"r{index}", f"s{index}", tuple(range(33, 83)), 4, 1.0, 1.0, 0, frozenset(), noise)


class Sender:
    """Shares a model in two blocks, which are ordinary files here."""

    def __init__(self, engine: VllmEngine, model: Path, folder: Path, version: int) -> None:
        import torch
        from safetensors.torch import load_file

        from rstar_model.digests import parameter_digest
        from rstar_model.weights import WeightManifest, combined_checksum, manifest_to_json

        self._engine, self._version = engine, version
        stored = load_file(model / "model.safetensors")
        tensors = [(name, tensor.to(torch.bfloat16)) for name, tensor in stored.items()]
        digests = {name: parameter_digest(tensor) for name, tensor in tensors}
        self.checksum = combined_checksum(digests)
        self.manifest = manifest_to_json(WeightManifest(version, self.checksum, Path(), DTYPE, {}, digests))
        half = len(tensors) // 2
        self.blocks = [
            _block(folder / f"{version}-{n}", part) for n, part in enumerate((tensors[:half], tensors[half:]))
        ]

    async def tell(self, **settings: Any) -> None:
        source = WeightSource(None, SHARED_MEMORY_BACKEND, json.dumps(settings))
        await self._engine.begin_weight_update(self._version, source)

    async def meet(self) -> None:
        await self.tell(workers=self._engine._settings.tensor_parallel, init={})

    async def send(self, *blocks: dict[str, Any]) -> None:
        await self.meet()
        for block in blocks or self.blocks:
            await self.tell(update=block)
        await self.tell(manifest=self.manifest)
        await self._engine.commit_weight_update(self._version, self.checksum)


def _block(path: Path, tensors: list[tuple[str, Any]]) -> dict[str, Any]:
    import torch

    told: dict[str, Any] = {"path": str(path), "names": [], "dtype_names": [], "shapes": [], "offsets": []}
    with path.open("wb") as file:
        for name, tensor in tensors:
            told["names"].append(name)
            told["dtype_names"].append(DTYPE)
            told["shapes"].append(list(tensor.shape))
            told["offsets"].append(file.tell())
            file.write(tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return told


async def test_weights_that_a_sender_shares(
    engine: VllmEngine, tiny_model: Path, other_model: Path, tmp_path: Path
) -> None:
    """One engine for all of it: starting vLLM is most of the time."""
    from rstar_rollout.engines.weight_files import folder_checksum

    workers = engine._settings.tensor_parallel
    assert (await engine.state()).workers == workers
    await Sender(engine, other_model, tmp_path, 2).send()
    assert (await engine.generate(ask(0))).weight_version == 2
    await engine.verify_weights()

    # A part is missing: told by name, and nothing is generated.
    sender = Sender(engine, tiny_model, tmp_path, 3)
    with pytest.raises(WeightUpdateError, match="not what was sent"):
        await sender.send(sender.blocks[0])
    with pytest.raises(EngineNotReadyError, match="version 3 are in doubt"):
        await engine.generate(ask(1))
    await sender.send()
    assert (await engine.generate(ask(2))).weight_version == 3

    # A sender that is never heard of again, and another in its place.
    sender = Sender(engine, tiny_model, tmp_path, 4)
    await sender.meet()
    await sender.tell(update=sender.blocks[0])
    await Sender(engine, other_model, tmp_path, 5).send()
    assert (await engine.generate(ask(3))).weight_version == 5

    # A folder, as well.
    await engine.begin_weight_update(6, WeightSource(str(tiny_model)))
    await engine.commit_weight_update(6, folder_checksum(tiny_model))
    assert (await engine.generate(ask(4))).weight_version == 6

    # Memory that is not there, after a block that was.
    sender = Sender(engine, other_model, tmp_path, 7)
    gone = {**sender.blocks[1], "path": str(tmp_path / "gone")}
    with pytest.raises(WeightUpdateError if workers == 1 else EngineDeadError):
        await sender.send(sender.blocks[0], gone)
    with pytest.raises(EngineNotReadyError):
        await engine.generate(ask(5))
    if workers > 1:
        # vLLM would take the other worker's error for the answer to its next question.
        with pytest.raises(EngineDeadError, match="a worker failed"):
            await sender.meet()
        return
    await sender.send()
    assert (await engine.generate(ask(6))).weight_version == 7

    # A sender that is waited for in vain: a pipe that nobody writes to.
    sender = Sender(engine, other_model, tmp_path, 8)
    os.mkfifo(tmp_path / "pipe")
    assert engine._weights is not None
    engine._weights._transfer_seconds = 2.0
    await sender.meet()
    began = time.monotonic()
    with pytest.raises(EngineDeadError, match="did not arrive within 2 s"):
        await sender.tell(update={**sender.blocks[0], "path": str(tmp_path / "pipe")})
    with pytest.raises(EngineDeadError, match="did not arrive"):
        await sender.meet()
    assert time.monotonic() - began < 60
    with pytest.raises(EngineNotReadyError):
        await engine.generate(ask(7))
