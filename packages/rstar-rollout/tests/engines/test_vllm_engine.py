"""The real vLLM on the CPU against a plain forward pass: log-probabilities, prefix cache, weights, stopped rollouts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from itertools import groupby
from pathlib import Path

import pytest

from rstar_model.chat_format import ChatFormat
from rstar_model.tokenizer import load_tokenizer
from rstar_model.trajectory import Trajectory
from rstar_model.types import EndReason
from rstar_rollout.agent_loop import AgentLoop
from rstar_rollout.engines.base import GenerationRequest, NoiseKey, WeightSource, WeightUpdateError
from rstar_rollout.engines.vllm_engine import VllmEngine, VllmSettings
from rstar_rollout.limits import ProblemRequest, RolloutLimits, SamplingSettings, ToolSettings

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


async def rollouts(engine: VllmEngine, folder: Path, *partial: Trajectory, stop_after_groups: int = 0):
    """Of six problems, or of those of the stopped rollouts, which then go on."""
    groups = sorted({t.group_id for t in partial}) or [f"g{index}" for index in range(6)]
    problems = [
        ProblemRequest(group, group, f"{group}?", 2, partial=own)
        for group in groups
        for own in [tuple(t for t in partial if t.group_id == group)]
    ]
    loop = AgentLoop(engine, ChatFormat.load("rstar"), load_tokenizer(folder), None)
    limits, no_tools = RolloutLimits(max_turns=1, max_response_tokens=300), ToolSettings(enabled=False)
    batch = loop.batch(problems, SamplingSettings(seed=3), limits, no_tools, stop_after_groups=stop_after_groups)
    return [trajectory async for trajectory in batch]


def check_parts(trajectory: Trajectory, folders: dict[int, Path]) -> None:
    """Each token that the policy wrote has the log-probability of the weights that it is said to be of."""
    ids, recorded = trajectory.ledger.token_ids, trajectory.ledger.log_probs
    versions = trajectory.ledger.weight_versions
    for version, folder in folders.items():
        expected = [0.0, *reference(folder, ids, len(ids) - 1)]
        own = [index for index, of in enumerate(versions) if of == version]
        assert [recorded[index] for index in own] == pytest.approx([expected[index] for index in own], abs=2e-3)


async def test_log_probs_prefix_cache_weight_update_and_stopped_rollouts(
    engine: VllmEngine, tiny_model: Path, other_model: Path
):
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

    stopped = await rollouts(engine, tiny_model, stop_after_groups=1)
    cut = [t for t in stopped if t.end_reason is EndReason.CANCELLED and t.policy_tokens > 0]
    assert cut

    await engine.begin_weight_update(2, WeightSource(str(other_model)))
    with pytest.raises(WeightUpdateError, match="checksum"):
        await engine.commit_weight_update(2, folder_checksum(tiny_model))
    await engine.begin_weight_update(2, WeightSource(str(other_model)))
    await engine.commit_weight_update(2, folder_checksum(other_model))
    # The same prompts as before: a prefix cache that was kept would answer for the old weights.
    again = [request(i, turn=3) for i in range(4)]
    assert {result.weight_version for result in await check(other_model, again)} == {2}
    ended = {rollout.trajectory_id: rollout for rollout in await rollouts(engine, tiny_model, *cut)}
    for rollout in (ended[partial.trajectory_id] for partial in cut):
        assert [version for version, _ in groupby(rollout.ledger.weight_versions) if version is not None] == [0, 2]
        assert rollout.end_reason is not EndReason.CANCELLED
        check_parts(rollout, {0: tiny_model, 2: other_model})
    state = await engine.state()
    assert (state.type, state.weight_version, state.running) == ("vllm", 2, 0)
    assert state.total_kv_blocks > 0
