"""The real vLLM on the CPU against a plain forward pass: log-probabilities, prefix cache, weight update."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from rstar_rollout.engines.base import GenerationRequest, NoiseKey, WeightSource, WeightUpdateError
from rstar_rollout.engines.vllm_engine import VllmEngine, VllmSettings

pytestmark = pytest.mark.heavy

PROMPT = tuple(range(33, 133))


@pytest.fixture
async def engine(tiny_model: Path) -> AsyncIterator[VllmEngine]:
    made = VllmEngine(tiny_model, VllmSettings(dtype="float32", kv_gib=0.25, max_model_tokens=512))
    await made.start()
    yield made
    await made.shutdown()


def request(index: int, ids: Sequence[int] = PROMPT, turn: int = 0, **changes) -> GenerationRequest:
    fields = {"max_new_tokens": 12, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "stop_ids": frozenset()}
    fields.update(changes)
    return GenerationRequest(
        request_id=f"r{index}/{turn}",
        sequence_id=f"s{index}",
        token_ids=tuple(ids),
        noise=NoiseKey(1, "p", index, turn),
        **fields,
    )


def reference(folder: Path, ids: Sequence[int], count: int, temperature: float = 1.0) -> list[float]:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        table = (model(torch.tensor([list(ids)])).logits[0] / temperature).log_softmax(-1)
    return [float(table[index - 1, ids[index]]) for index in range(len(ids) - count, len(ids))]


async def test_log_probs_prefix_cache_and_weight_update(engine: VllmEngine, tiny_model: Path, other_model: Path):
    """One engine for all of it: starting vLLM is most of the time."""
    from rstar_rollout.engines.weight_files import folder_checksum

    async def check(folder: Path, asked: list[GenerationRequest], temperature: float = 1.0) -> list:
        results = await asyncio.gather(*(engine.generate(one) for one in asked))
        for one, result in zip(asked, results, strict=True):
            ids = [*one.token_ids, *result.token_ids]
            expected = reference(folder, ids, len(result.token_ids), temperature)
            assert result.log_probs == pytest.approx(expected, abs=2e-3)
        return results

    first = [request(i) for i in range(4)]
    results = await check(tiny_model, first)
    await check(tiny_model, [request(i, turn=1, temperature=0.6) for i in range(4)], temperature=0.6)
    longer = [
        request(i, [*a.token_ids, *b.token_ids, 70, 71], turn=2)
        for i, (a, b) in enumerate(zip(first, results, strict=True))
    ]
    await check(tiny_model, longer)
    # More new prompt tokens at once than a step of vLLM takes.
    await check(tiny_model, [request(10 + i, [40 + i] * 400, turn=0) for i in range(12)])

    await engine.begin_weight_update(2, WeightSource(str(other_model)))
    with pytest.raises(WeightUpdateError, match="checksum"):
        await engine.commit_weight_update(2, folder_checksum(tiny_model))
    await engine.begin_weight_update(2, WeightSource(str(other_model)))
    await engine.commit_weight_update(2, folder_checksum(other_model))
    # The same prompts as before: a prefix cache that was kept would answer for the old weights.
    again = [request(i, turn=3) for i in range(4)]
    assert {result.weight_version for result in await check(other_model, again)} == {2}
    state = await engine.state()
    assert (state.type, state.weight_version, state.running) == ("vllm", 2, 0)
    assert state.total_kv_blocks > 0
