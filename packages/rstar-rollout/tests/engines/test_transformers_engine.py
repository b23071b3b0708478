"""The transformers engine against transformers itself: log-probabilities, caches, updates, bit-equality."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from rstar_protos.errors import UserInputError
from rstar_rollout.engines.base import GenerationRequest, GenerationResult, NoiseKey, WeightSource
from rstar_rollout.engines.transformers_engine import TransformersEngine, TransformersSettings

SYSTEM = tuple(range(33, 120))


def requests(
    count: int, *, turn: int = 0, prompts: dict[int, Sequence[int]] | None = None, **changes
) -> list[GenerationRequest]:
    """Groups of three share a prompt; all prompts share the system part."""
    fields = {
        "max_new_tokens": 10,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": 0,
        "stop_ids": frozenset(range(60)),
    }
    fields.update(changes)
    return [
        GenerationRequest(
            request_id=f"r{i}/{turn}",
            sequence_id=f"s{i}",
            token_ids=tuple((prompts or {}).get(i) or (*SYSTEM, *range(100 + i // 3, 104 + i // 3))),
            noise=NoiseKey(5, f"p{i // 3}", i, turn),
            **fields,
        )
        for i in range(count)
    ]


def reference_log_probs(folder: Path, ids: Sequence[int], count: int, temperature: float) -> list[float]:
    """Log-probabilities of the last ``count`` ids by a plain forward pass."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.no_grad():
        logits = model(torch.tensor([list(ids)])).logits[0].float() / temperature
    table = logits.log_softmax(-1)
    return [float(table[index - 1, ids[index]]) for index in range(len(ids) - count, len(ids))]


async def started(folder: Path, **settings) -> TransformersEngine:
    engine = TransformersEngine(folder, TransformersSettings(**{"dtype": "float32", "threads": 1, **settings}))
    await engine.start()
    return engine


def check(folder: Path, asked: GenerationRequest, result: GenerationResult, temperature: float = 1.0) -> None:
    ids = [*asked.token_ids, *result.token_ids]
    expected = reference_log_probs(folder, ids, len(result.token_ids), temperature)
    assert result.log_probs == pytest.approx(expected, abs=2e-4)


@pytest.mark.parametrize("max_batch", [2, 5, 32])
async def test_log_probs_are_those_of_a_plain_forward_pass(tiny_model: Path, max_batch: int):
    """With shared prefixes, shared prompts, rows that leave and rows that join."""
    engine = await started(tiny_model, max_batch=max_batch)
    asked = requests(9)
    for one, result in zip(asked, await engine.generate_batch(asked), strict=True):
        check(tiny_model, one, result)
    await engine.shutdown()


async def test_log_probs_are_at_the_sampling_temperature(tiny_model: Path):
    engine = await started(tiny_model)
    asked = requests(3, temperature=0.6)
    for one, result in zip(asked, await engine.generate_batch(asked), strict=True):
        check(tiny_model, one, result, temperature=0.6)
    await engine.shutdown()


async def test_second_turn_continues_from_kept_caches(tiny_model: Path):
    engine = await started(tiny_model)
    first = requests(6, max_new_tokens=40, stop_ids=frozenset(range(150)))
    results = await engine.generate_batch(first)
    longer = {
        i: (*one.token_ids, *result.token_ids, *range(70, 85 + i))
        for i, (one, result) in enumerate(zip(first, results, strict=True))
    }
    second = requests(6, turn=1, prompts=longer)
    for one, result in zip(second, await engine.generate_batch(second), strict=True):
        check(tiny_model, one, result)
    await engine.shutdown()


async def test_changed_history_is_not_answered_from_a_stale_cache(tiny_model: Path):
    engine = await started(tiny_model)
    stop = frozenset(range(150))
    (first,) = requests(1, stop_ids=stop, max_new_tokens=50)
    await engine.generate_batch([first])
    (second,) = requests(1, turn=1, prompts={0: tuple(reversed(first.token_ids))})
    check(tiny_model, second, (await engine.generate_batch([second]))[0])
    await engine.shutdown()


async def test_long_prompt_is_computed_in_pieces(tiny_model: Path):
    engine = await started(tiny_model)
    long = tuple(33 + (i * 7919) % 200 for i in range(2500))
    asked = requests(2, prompts={0: long, 1: long[:2100]}, max_new_tokens=3)
    for one, result in zip(asked, await engine.generate_batch(asked), strict=True):
        check(tiny_model, one, result)
    await engine.shutdown()


async def test_prompt_of_one_token(tiny_model: Path):
    engine = await started(tiny_model)
    asked = requests(2, prompts={0: (65,), 1: (66,)})
    for one, result in zip(asked, await engine.generate_batch(asked), strict=True):
        check(tiny_model, one, result)
    await engine.shutdown()


async def test_greedy_takes_the_most_probable_token(tiny_model: Path):
    engine = await started(tiny_model)
    (one,) = requests(1, temperature=0.0, stop_ids=frozenset())
    (result,) = await engine.generate_batch([one])
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    ids = list(one.token_ids)
    for token in result.token_ids:
        with torch.no_grad():
            assert token == int(model(torch.tensor([ids])).logits[0, -1].argmax())
        ids.append(token)
    await engine.shutdown()


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
async def test_rounds_are_bit_equal_from_run_to_run(tiny_model: Path, dtype: str):
    """Also when the engine did other work before."""
    outcomes = []
    for warm_up in (False, True):
        engine = await started(tiny_model, dtype=dtype, max_batch=4)
        if warm_up:
            other = requests(5, turn=7, prompts={i: tuple(range(50 + i, 170)) for i in range(5)})
            await engine.generate_batch(other)
        first = await engine.generate_batch(requests(10))
        outcomes.append([(r.token_ids, r.log_probs) for r in first])
        await engine.shutdown()
    assert outcomes[0] == outcomes[1]


async def test_tokens_do_not_depend_on_the_place_in_the_batch(tiny_model: Path):
    engine = await started(tiny_model)
    asked = requests(7)
    straight = await engine.generate_batch(asked)
    for i in range(7):
        engine.release(f"s{i}")
    turned = await engine.generate_batch(asked[::-1])
    assert [r.token_ids for r in straight] == [r.token_ids for r in turned[::-1]]
    await engine.shutdown()


async def test_update_drops_every_cache(tiny_model: Path, other_model: Path):
    """Second turns after an update must not read keys and values of the old weights."""
    from rstar_rollout.engines.weight_files import folder_checksum

    engine = await started(tiny_model)
    first = requests(4, stop_ids=frozenset(range(200)), max_new_tokens=60)
    results = await engine.generate_batch(first)
    await engine.begin_weight_update(2, WeightSource(str(other_model)))
    await engine.commit_weight_update(2, folder_checksum(other_model))
    longer = {i: (*a.token_ids, *b.token_ids, 70, 71) for i, (a, b) in enumerate(zip(first, results, strict=True))}
    second = requests(4, turn=1, prompts=longer)
    for one, result in zip(second, await engine.generate_batch(second), strict=True):
        check(other_model, one, result)
        assert result.weight_version == 2
    await engine.shutdown()


async def test_update_reaches_packed_bfloat16_layers(tiny_model: Path, other_model: Path):
    from rstar_rollout.engines.weight_files import folder_checksum

    updated = await started(tiny_model, dtype="bfloat16")
    await updated.begin_weight_update(2, WeightSource(str(other_model)))
    await updated.commit_weight_update(2, folder_checksum(other_model))
    fresh = await started(other_model, dtype="bfloat16")
    asked = requests(3)
    one, two = await updated.generate_batch(asked), await fresh.generate_batch(asked)
    assert [(r.token_ids, r.log_probs) for r in one] == [(r.token_ids, r.log_probs) for r in two]
    await updated.shutdown()
    await fresh.shutdown()


async def test_small_memory_makes_smaller_batches_not_failures(tiny_model: Path):
    engine = await started(tiny_model, kv_gib=1e-6)
    asked = requests(5)
    for one, result in zip(asked, await engine.generate_batch(asked), strict=True):
        check(tiny_model, one, result)
    await engine.shutdown()


async def test_requests_join_a_running_batch_when_not_deterministic(tiny_model: Path):
    engine = await started(tiny_model, deterministic=False, max_batch=3)
    asked = requests(8)
    results = await asyncio.gather(*(engine.generate(one) for one in asked))
    for one, result in zip(asked, results, strict=True):
        check(tiny_model, one, result)
    await engine.shutdown()


async def test_folder_without_model_is_a_user_error(tmp_path: Path):
    engine = TransformersEngine(tmp_path)
    with pytest.raises(UserInputError, match=r"config\.json"):
        await engine.start()
    await engine.shutdown()


@pytest.mark.parametrize("settings", [{"dtype": "int8"}, {"max_batch": 0}])
def test_bad_settings_are_refused(tmp_path: Path, settings):
    with pytest.raises(UserInputError):
        TransformersEngine(tmp_path, TransformersSettings(**settings))
