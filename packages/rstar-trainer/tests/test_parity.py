"""The learner against an independent reference in plain, unpacked PyTorch, in float64: gradients to 1e-10."""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig

from rstar_model.packing import PackedBatch, TrainingSequence, pack
from rstar_model.policy import Policy
from rstar_trainer import loss_pass
from rstar_trainer.learner import TorchLearner
from rstar_trainer.objective import group_advantages
from rstar_trainer.recipe import LossSettings, OptimizerSettings
from rstar_trainer.sequences import WeightedSequence

sys.path.insert(0, str(Path(__file__).parent / "support"))

from reference_step import Example, Objective, Outcome, PlainLlama, reference_step

VOCABULARY, GROUPS, PER_GROUP, RATE, MAX_NORM = 61, 4, 4, 0.03, 0.5
CONFIG = LlamaConfig(
    vocab_size=VOCABULARY,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    tie_word_embeddings=True,
)
OPTIONS = {
    "group_token_mean": {},
    "batch_token_mean": {"aggregation": "batch_token_mean"},
    "sequence_mean": {"aggregation": "sequence_mean"},
    "dr_grpo": {"aggregation": "dr_grpo", "constant_tokens": 24},
    "mean_advantage": {"advantage": "mean"},
    "engine_correction": {"engine_ratio_cap": 1.3},
    "narrow_clip": {"clip_low": 0.02, "clip_high": 0.03},
}


def sequences(advantage: str) -> list[WeightedSequence]:
    """Groups with a common prompt and rollouts of unequal length: several turns, tool results, some at the end."""
    rng = random.Random(5)
    found = []
    for group in range(GROUPS):
        prompt = [rng.randrange(VOCABULARY) for _ in range(rng.randint(2, 9))]
        rewards = [1.0, 0.0, 0.0, 0.5][: PER_GROUP - group % 2]
        for value in group_advantages(rewards, advantage):  # type: ignore[arg-type]
            ids, mask = list(prompt), [False] * len(prompt)
            for kind, low, high in ((True, 1, 12), (False, 0, 6), (True, 0, 7), (False, 0, 3)):
                length = rng.randint(low, high)
                ids += [rng.randrange(VOCABULARY) for _ in range(length)]
                mask += [kind] * length
            engine = [-4.1 + rng.uniform(-0.6, 0.6) if loss else math.nan for loss in mask]
            found.append(WeightedSequence(tuple(ids), tuple(mask), tuple(engine), group, value))
    return found


def by_reference(settings: LossSettings, temperature: float) -> Outcome:
    examples = [
        Example(s.token_ids, s.loss_mask, s.engine_log_probs, s.group, s.advantage)
        for s in sequences(settings.advantage)
    ]
    objective = Objective(
        aggregation=settings.aggregation,
        clip_low=settings.clip_low,
        clip_high=settings.clip_high,
        constant=settings.constant_tokens or 1,
        cap=settings.engine_ratio_cap,
        temperature=temperature,
        updates=settings.updates_per_step,
    )
    model = PlainLlama(CONFIG, dict(policy().model.named_parameters()))
    return reference_step(model, examples, objective, rate=RATE, max_norm=MAX_NORM)


def policy() -> Policy:
    return Policy.from_config(CONFIG, dtype="float64", seed=3)


def by_learner(settings: LossSettings, temperature: float, monkeypatch: pytest.MonkeyPatch) -> Outcome:
    trained = policy()
    learner = TorchLearner(trained, OptimizerSettings(max_grad_norm=MAX_NORM))
    outcome, step = Outcome(), learner._step

    def recorded_step(rate: float) -> float:
        outcome.gradients.append(torch.cat([p.grad.flatten() for p in trained.model.parameters()]).clone())
        return step(rate)

    monkeypatch.setattr(learner, "_step", recorded_step)
    metrics = learner.policy_update(sequences(settings.advantage), RATE, temperature, settings)
    outcome.losses = [metrics.loss]
    outcome.parameters = {name: value.detach() for name, value in trained.model.named_parameters()}
    return outcome


def micro_batches_of(count: int, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every pass take `count` sequences, laid out one way."""

    def split(lengths: Sequence[int], _: int) -> list[list[int]]:
        return [list(range(start, min(start + count, len(lengths)))) for start in range(0, len(lengths), count)]

    def laid_out(items: Sequence[TrainingSequence], *, share_prefix: bool) -> PackedBatch:
        return pack(items, share_prefix=layout == "shared prompt")

    monkeypatch.setattr(loss_pass, "split_by_tokens", split)
    monkeypatch.setattr(loss_pass, "pack", laid_out)


def agree(found: Outcome, expected: Outcome) -> None:
    assert len(found.gradients) == len(expected.gradients)
    for gradient, wanted in zip(found.gradients, expected.gradients, strict=True):
        assert torch.linalg.norm(gradient - wanted) <= 1e-10 * torch.linalg.norm(wanted)
    assert found.losses[0] == pytest.approx(sum(expected.losses) / len(expected.losses), abs=1e-11)
    for name, value in found.parameters.items():
        torch.testing.assert_close(value, expected.parameters[name], rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("updates", [1, 4])
def test_every_option_gives_the_references_gradients(
    option: str, updates: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = LossSettings(updates_per_step=updates, **OPTIONS[option])  # type: ignore[arg-type]
    expected = by_reference(settings, 0.8)
    agree(by_learner(settings, 0.8, monkeypatch), expected)
    # With one update the ratio is 1; with several some tokens leave the range, or the clipping would go untested.
    assert (expected.clipped > 0) == (updates > 1)


@pytest.mark.parametrize("updates", [1, 4])
@pytest.mark.parametrize("count", [1, 2, 4, 8])
@pytest.mark.parametrize("layout", ["shared prompt", "end to end"])
def test_every_micro_batch_size_and_layout_gives_the_references_gradients(
    layout: str, count: int, updates: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    micro_batches_of(count, layout, monkeypatch)
    settings = LossSettings(updates_per_step=updates)
    agree(by_learner(settings, 1.0, monkeypatch), by_reference(settings, 1.0))


def test_supervised_gradient_is_that_of_the_mean_over_assistant_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    micro_batches_of(3, "shared prompt", monkeypatch)
    trained, model = policy(), PlainLlama(CONFIG, dict(policy().model.named_parameters()))
    chosen = [model.log_probs(s.token_ids, 1.0)[torch.tensor(s.loss_mask[1:])] for s in sequences("std")]
    loss = -torch.cat(chosen).mean()
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters.values()))])
    learner = TorchLearner(trained, OptimizerSettings())
    seen: list[torch.Tensor] = []

    def keep(rate: float) -> float:
        seen.append(torch.cat([p.grad.flatten() for p in trained.model.parameters()]))
        return 0.0

    monkeypatch.setattr(learner, "_step", keep)
    metrics = learner.supervised_update(sequences("std"), RATE, 100)
    assert metrics.loss == pytest.approx(float(loss.detach()), abs=1e-12)
    assert torch.linalg.norm(seen[0] - expected) <= 1e-10 * torch.linalg.norm(expected)
