"""vLLM on a GPU: sleep gives memory back, and nothing is generated with weights that did not survive it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rstar_rollout.engines.base import EngineNotReadyError, GenerationRequest, NoiseKey, WeightSource
from rstar_rollout.engines.vllm_engine import VllmEngine, VllmSettings

pytest.importorskip("vllm")
torch = pytest.importorskip("torch")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

LEVELS = (1, 2)


@pytest.fixture(params=LEVELS, ids=lambda level: f"level-{level}")
async def engine(request: pytest.FixtureRequest, tiny_model: Path) -> AsyncIterator[VllmEngine]:
    settings = VllmSettings(kv_gib=1.0, max_model_tokens=512, enforce_eager=True, sleep_level=request.param)
    made = VllmEngine(tiny_model, settings)
    await made.start()
    yield made
    await made.shutdown()


def ask(index: int) -> GenerationRequest:
    noise = NoiseKey(1, "p", index, 0)
    return GenerationRequest(f"r{index}", f"s{index}", tuple(range(33, 83)), 4, 1.0, 1.0, 0, frozenset(), noise)


def free_bytes() -> int:
    return int(torch.cuda.mem_get_info()[0])


async def test_sleep_frees_memory_and_wake_needs_the_right_weights(engine: VllmEngine, tiny_model: Path) -> None:
    from rstar_rollout.engines.weight_files import folder_checksum

    await engine.generate(ask(0))
    awake = free_bytes()
    await engine.sleep()
    assert free_bytes() > awake + 2**29  # most of the KV cache of 1 GiB
    with pytest.raises(EngineNotReadyError, match="sleeps"):
        await engine.generate(ask(1))
    await engine.wake()
    if engine._settings.sleep_level == 2:
        # The weights are gone, and that is noticed.
        with pytest.raises(EngineNotReadyError, match="in doubt"):
            await engine.generate(ask(2))
    else:
        await engine.generate(ask(2))
        await engine.verify_weights()

    await engine.sleep()
    # Colocated: weights are sent to a sleeping engine, which takes its cache's memory last.
    await engine.begin_weight_update(2, WeightSource(str(tiny_model)))
    await engine.commit_weight_update(2, folder_checksum(tiny_model))
    assert (await engine.generate(ask(3))).weight_version == 2
