"""The learner against an independent reference: one plain, unpacked forward pass per sequence, in float64."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Sequence

import pytest
import torch
from transformers import LlamaConfig

from rstar_model.policy import Policy
from rstar_trainer.learner import TorchLearner
from rstar_trainer.recipe import LossSettings, OptimizerSettings
from rstar_trainer.sequences import WeightedSequence

VOCABULARY = 97


@pytest.fixture
def policy() -> Policy:
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    return Policy.from_config(config, dtype="float64", autocast=None, seed=3)


def _sequences(groups: int = 3, per_group: int = 4) -> list[WeightedSequence]:
    rng = random.Random(7)
    found = []
    for group in range(groups):
        prompt = [rng.randrange(VOCABULARY) for _ in range(rng.randint(3, 9))]
        for member in range(per_group):
            turn, tool, last = (
                [rng.randrange(VOCABULARY) for _ in range(rng.randint(low, high))]
                for low, high in ((1, 12), (0, 5), (0, 7))
            )
            mask = [False] * len(prompt) + [True] * len(turn) + [False] * len(tool) + [True] * len(last)
            ids = prompt + turn + tool + last
            probs = [-1.0 if policy else math.nan for policy in mask]
            advantage = 1.5 if member == 0 else -0.5
            found.append(WeightedSequence(tuple(ids), tuple(mask), tuple(probs), group, advantage))
    return found


def _reference_log_probs(model: torch.nn.Module, sequence: WeightedSequence) -> torch.Tensor:
    ids = torch.tensor([sequence.token_ids])
    logits = model(input_ids=ids).logits[0, :-1]
    chosen = torch.log_softmax(logits, -1).gather(1, ids[0, 1:, None]).squeeze(1)
    return chosen[torch.tensor(sequence.loss_mask[1:])]


def _reference_gradient(
    model: torch.nn.Module, sequences: Sequence[WeightedSequence], aggregation: str
) -> tuple[float, torch.Tensor]:
    """The gradient of the objective at ratio 1, written straight from equation 6."""
    groups = sorted({sequence.group for sequence in sequences})
    per_group = {group: sum(s.policy_tokens for s in sequences if s.group == group) for group in groups}
    loss = torch.zeros((), dtype=torch.float64)
    for sequence in sequences:
        log_probs = _reference_log_probs(model, sequence)
        ratio = (log_probs - log_probs.detach()).exp()
        clipped = ratio.clamp(0.8, 1.28)
        terms = torch.minimum(ratio * sequence.advantage, clipped * sequence.advantage)
        if aggregation == "group_token_mean":
            loss = loss - terms.sum() / per_group[sequence.group] / len(groups)
        else:
            loss = loss - terms.sum() / sum(per_group.values())
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    return float(loss.detach()), torch.cat([gradient.flatten() for gradient in gradients])


def _plain(policy: Policy) -> torch.nn.Module:
    """A copy with the library's own attention."""
    model = copy.deepcopy(policy.model)
    model.set_attn_implementation("eager")
    return model  # type: ignore[no-any-return]


def _learner_gradient(
    policy: Policy, sequences: Sequence[WeightedSequence], loss: LossSettings, monkeypatch: pytest.MonkeyPatch
) -> tuple[float, torch.Tensor]:
    learner = TorchLearner(policy, OptimizerSettings(max_grad_norm=1e9))
    seen: list[torch.Tensor] = []

    def keep(rate: float) -> float:
        seen.append(torch.cat([p.grad.flatten() for p in policy.model.parameters()]))
        policy.model.zero_grad()
        return 0.0

    monkeypatch.setattr(learner, "_step", keep)
    metrics = learner.policy_update(sequences, 1e-3, 1.0, loss)
    return metrics.loss, seen[0]


@pytest.mark.parametrize("aggregation", ["group_token_mean", "batch_token_mean"])
@pytest.mark.parametrize("micro_batch_tokens", [16, 40, 100, 100_000])
def test_the_gradient_is_the_references_for_any_micro_batch(
    policy: Policy, aggregation: str, micro_batch_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    sequences = _sequences()
    settings = LossSettings(aggregation=aggregation, micro_batch_tokens=micro_batch_tokens)  # type: ignore[arg-type]
    expected_loss, expected = _reference_gradient(_plain(policy), sequences, aggregation)
    loss, found = _learner_gradient(policy, sequences, settings, monkeypatch)
    assert loss == pytest.approx(expected_loss, abs=1e-6)
    # Advantages and weights enter in float32, which bounds the agreement.
    assert torch.linalg.norm(found - expected) <= 1e-6 * torch.linalg.norm(expected)


def test_prompt_tool_and_separator_tokens_contribute_nothing(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flipping the target of a masked position that nothing attends to leaves the gradient as it was."""
    sequences = _sequences(groups=1)
    trailing = [
        WeightedSequence(
            (*s.token_ids, 5, 6, 7),
            (*s.loss_mask, *[False] * 3),
            (*s.engine_log_probs, *[math.nan] * 3),
            0,
            s.advantage,
        )
        for s in sequences
    ]
    _, plain = _learner_gradient(policy, sequences, LossSettings(), monkeypatch)
    _, with_tool_result = _learner_gradient(policy, trailing, LossSettings(), monkeypatch)
    # The rollout that ends in a tool result keeps its whole signal.
    assert torch.allclose(plain, with_tool_result, atol=1e-12)
    assert plain.abs().max() > 0


def test_the_ratio_is_one_before_the_first_update(policy: Policy) -> None:
    metrics = TorchLearner(policy, OptimizerSettings()).policy_update(_sequences(), 1e-3, 0.7, LossSettings())
    assert metrics.ratio == pytest.approx(1.0)
    assert (metrics.clip_low_share, metrics.clip_high_share, metrics.kl) == (0.0, 0.0, 0.0)
    assert metrics.mismatch > 0


def test_several_updates_move_the_ratio_and_clip(policy: Policy) -> None:
    settings = LossSettings(updates_per_step=3)
    learner = TorchLearner(policy, OptimizerSettings())
    first = learner.policy_update(_sequences(), 0.05, 1.0, settings)
    assert first.kl > 0
    assert first.clip_low_share + first.clip_high_share > 0


def test_a_state_that_is_loaded_continues_bit_for_bit(policy: Policy) -> None:
    other = Policy(copy.deepcopy(policy.model), autocast=None)
    learner = TorchLearner(policy, OptimizerSettings())
    learner.supervised_update(_sequences(), 1e-3, 64)
    state = copy.deepcopy(dict(learner.state_dict()))
    continued = learner.policy_update(_sequences(), 1e-3, 1.0, LossSettings())
    resumed = TorchLearner(other, OptimizerSettings())
    resumed.load_state_dict(state)
    again = resumed.policy_update(_sequences(), 1e-3, 1.0, LossSettings())
    assert (continued.loss, continued.grad_norm) == (again.loss, again.grad_norm)
    for a, b in zip(policy.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_supervised_updates_lower_the_loss(policy: Policy) -> None:
    learner = TorchLearner(policy, OptimizerSettings())
    losses = [learner.supervised_update(_sequences(), 3e-3, 64).loss for _ in range(8)]
    assert losses[-1] < losses[0] - 0.1


def test_nothing_to_learn_from_is_refused(policy: Policy) -> None:
    with pytest.raises(ValueError, match="at least one accepted group"):
        TorchLearner(policy, OptimizerSettings()).policy_update([], 1e-3, 1.0, LossSettings())
