"""Weights in real vLLM workers (CPU): every parameter is looked at where it lies, and nothing wrong is served."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rstar_rollout.engines.base import (
    EngineNotReadyError,
    GenerationRequest,
    NoiseKey,
    WeightSource,
    WeightUpdateError,
)
from rstar_rollout.engines.vllm_engine import VllmEngine, VllmSettings

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(1800)]

pytest.importorskip("vllm")

HOSTS = Path(__file__).parent / "hosts"
# Layers of every kind: fused by rows, a row-parallel one, a table that is also the output layer, a norm. Rows and
# columns are ones that each of two workers has.
PLACES = {
    "model.layers.0.self_attn.qkv_proj": (70, 3, r"self_attn\.[qk]_proj\.weight"),
    "model.layers.1.self_attn.o_proj": (5, 7, r"self_attn\.o_proj\.weight"),
    "model.layers.1.mlp.gate_up_proj": (70, 11, r"mlp\.(gate|up)_proj\.weight"),
    "model.layers.0.mlp.down_proj": (63, 40, r"mlp\.down_proj\.weight"),
    "model.embed_tokens": (50, 63, r"embed_tokens\.weight"),
    "model.norm": (0, 9, r"norm\.weight"),
}


@pytest.fixture(params=[("float32", 1), ("bfloat16", 2)], ids=["one-worker", "two-workers"])
async def engine(
    request: pytest.FixtureRequest, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[VllmEngine]:
    monkeypatch.syspath_prepend(str(HOSTS))
    monkeypatch.setenv("PYTHONPATH", str(HOSTS), prepend=":")
    dtype, workers = request.param
    settings = VllmSettings(
        dtype=dtype,
        kv_gib=0.25,
        max_model_tokens=512,
        tensor_parallel=workers,
        cpu_threads="nobind",
        worker_extension="faulty_worker.FaultyWorker",
    )
    made = VllmEngine(tiny_model, settings)
    await made.start()
    yield made
    await made.shutdown()


def ask(index: int) -> GenerationRequest:
    return GenerationRequest(
        request_id=f"r{index}",
        sequence_id=f"s{index}",
        token_ids=tuple(range(33, 83)),
        max_new_tokens=4,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        stop_ids=frozenset(),
        noise=NoiseKey(1, "p", index, 0),
    )


async def order(engine: VllmEngine, method: str, *arguments: object) -> list[object]:
    assert engine._llm is not None
    return await engine._llm.collective_rpc(method, args=arguments)


def send(folder: Path, model: Path, version: int, dtype: str) -> str:
    """A folder as a learner writes it, with digests and a canary; returns its checksum."""
    import torch

    from rstar_model.packing import TrainingSequence, pack
    from rstar_model.policy import Policy
    from rstar_model.weights import Canary, write_weights

    policy = Policy.load(model, autocast=None)
    ids = tuple(range(40, 72))
    with torch.no_grad():
        packed = pack([TrainingSequence(ids, [n > 0 for n in range(len(ids))])])
        log_probs = policy.forward_log_probs(packed).log_probs[1:].tolist()
    canary = Canary(ids, tuple(log_probs))
    return write_weights(policy, folder, version, dtype, digests=True, canary=canary).checksum


async def update(engine: VllmEngine, folder: Path, version: int, checksum: str) -> None:
    await engine.begin_weight_update(version, WeightSource(str(folder)))
    await engine.commit_weight_update(version, checksum)


async def test_weights_are_checked_where_they_lie(
    engine: VllmEngine, tiny_model: Path, other_model: Path, tmp_path: Path
) -> None:
    """One engine for all of it: starting vLLM is most of the time."""
    dtype = engine._settings.dtype
    await engine.verify_weights()  # what it began with is the folder's
    checksums = {
        version: send(tmp_path / str(version), model, version, dtype)
        for version, model in ((2, other_model), (3, tiny_model), (4, other_model))
    }
    await update(engine, tmp_path / "2", 2, checksums[2])
    assert (await engine.generate(ask(0))).weight_version == 2

    for number, (layer, (row, column, name)) in enumerate(PLACES.items(), start=1):
        moved = await order(engine, "rstar_flip", layer, row, column)
        assert 0 < moved[0] < 0.02
        with pytest.raises(WeightUpdateError, match=rf"parameters are not what was sent: \S*{name}"):
            await engine.verify_weights()
        with pytest.raises(EngineNotReadyError, match="in doubt"):
            await engine.generate(ask(number))
        # The next update puts it right.
        version, folder = (3, "3") if number % 2 else (4, "4")
        await update(engine, tmp_path / folder, version, checksums[version])
        assert (await engine.generate(ask(100 + number))).weight_version == version

    await order(engine, "rstar_ignore_next_update")
    with pytest.raises(WeightUpdateError, match="not what was sent"):
        await update(engine, tmp_path / "3", 3, checksums[3])
    with pytest.raises(EngineNotReadyError, match="version 3 are in doubt"):
        await engine.generate(ask(200))
    assert (await engine.state()).paused

    await engine.begin_weight_update(3, WeightSource(str(tmp_path / "3")))
    with pytest.raises(WeightUpdateError, match="the sender's is"):
        await engine.commit_weight_update(3, checksums[2])
    await update(engine, tmp_path / "3", 3, checksums[3])
    await asyncio.gather(*(engine.generate(ask(300 + n)) for n in range(3)))
