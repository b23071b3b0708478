"""On a GPU: a bfloat16 step over float32 weights moves the policy where the same step on the CPU does."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig

from rstar_model.policy import Policy
from rstar_trainer.learner import TorchLearner
from rstar_trainer.recipe import LossSettings, OptimizerSettings
from rstar_trainer.sequences import WeightedSequence

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]

CONFIG = LlamaConfig(
    vocab_size=997,
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    tie_word_embeddings=True,
)


def sequences() -> list[WeightedSequence]:
    rng = random.Random(1)
    found = []
    for group in range(4):
        prompt = [rng.randrange(997) for _ in range(30)]
        for advantage in (1.0, -1.0, 0.5, -0.5):
            length = rng.randint(5, 200)
            ids = (*prompt, *(rng.randrange(997) for _ in range(length)))
            mask = (*[False] * 30, *[True] * length)
            found.append(WeightedSequence(ids, mask, (math.nan,) * len(ids), group, advantage))
    return found


def learner(device: str, autocast: str | None) -> TorchLearner:
    policy = Policy.from_config(CONFIG, autocast=autocast, seed=2)
    policy.model.to(device)
    return TorchLearner(policy, OptimizerSettings())


@pytest.mark.parametrize("updates", [1, 2])
def test_a_bfloat16_step_agrees_with_the_cpus_float32_step(updates: int) -> None:
    settings = LossSettings(updates_per_step=updates)
    exact, found = learner("cpu", None), learner("cuda", "bfloat16")
    expected = exact.policy_update(sequences(), 1e-4, 1.0, settings)
    metrics = found.policy_update(sequences(), 1e-4, 1.0, settings)
    assert metrics.loss == pytest.approx(expected.loss, abs=5e-3)
    assert metrics.grad_norm == pytest.approx(expected.grad_norm, rel=0.05)
    assert all(p.dtype == torch.float32 and p.is_cuda for p in found.policy.model.parameters())


def test_a_small_learning_rate_is_not_rounded_away() -> None:
    found = learner("cuda", "bfloat16")
    before = torch.cat([p.detach().flatten() for p in found.policy.model.parameters()])
    found.policy_update(sequences(), 1e-6, 1.0, LossSettings())
    after = torch.cat([p.detach().flatten() for p in found.policy.model.parameters()])
    moved = (after != before).float().mean()
    # Rows of tokens that do not occur have no gradient in the input, but the tied output layer reaches them.
    assert moved > 0.9


def test_a_state_saved_on_the_gpu_continues_bit_for_bit(tmp_path: Path) -> None:
    first, second = learner("cuda", "bfloat16"), learner("cuda", "bfloat16")
    first.policy_update(sequences(), 1e-4, 1.0, LossSettings())
    first.begin_save(tmp_path)()
    second.load_saved(tmp_path)
    for a, b in zip(first.policy.model.parameters(), second.policy.model.parameters(), strict=True):
        assert torch.equal(a, b)
