"""What the learner does with sequences: masks, degenerate groups, metrics, state. Parity has its own file."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig

from rstar_model.packing import pack
from rstar_model.policy import Policy
from rstar_protos.errors import UserInputError
from rstar_trainer.learner import TorchLearner
from rstar_trainer.objective import group_advantages
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


def _with_tool_result(sequence: WeightedSequence, ids: tuple[int, ...]) -> WeightedSequence:
    return replace(
        sequence,
        token_ids=(*sequence.token_ids, *ids),
        loss_mask=(*sequence.loss_mask, *[False] * len(ids)),
        engine_log_probs=(*sequence.engine_log_probs, *[math.nan] * len(ids)),
    )


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


def test_states_that_predict_no_policy_token_get_no_gradient_at_all(policy: Policy) -> None:
    """Prompt, tool and separator tokens: their term of the loss is not small, it is not there."""
    states: list[torch.Tensor] = []

    def keep(module: torch.nn.Module, inputs: object, output: torch.Tensor) -> None:
        output.retain_grad()
        states.append(output)

    policy.model.model.norm.register_forward_hook(keep)
    sequences = _sequences()
    TorchLearner(policy, OptimizerSettings()).policy_update(sequences, 1e-3, 1.0, LossSettings())
    batch = pack([sequence.columns for sequence in sequences], share_prefix=True)
    predicting = torch.zeros(len(batch), dtype=torch.bool)
    predicting[batch.previous[batch.loss_mask]] = True
    assert states[0].grad is not None
    reached = states[0].grad[0].abs().sum(-1) > 0
    assert torch.equal(reached, predicting)
    assert not predicting.all()


@pytest.mark.parametrize("changed", ["engine_log_probs", "last_token"])
def test_what_a_tool_wrote_is_no_target(policy: Policy, changed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other values at masked positions, which nothing after them sees, leave every layer's gradient bit-equal."""
    sequences = [_with_tool_result(sequence, (5, 6, 7)) for sequence in _sequences(groups=1)]
    if changed == "last_token":
        other = [replace(s, token_ids=(*s.token_ids[:-1], 11)) for s in sequences]
    else:
        other = [
            replace(
                s,
                engine_log_probs=tuple(
                    p if loss else -9.0 for p, loss in zip(s.engine_log_probs, s.loss_mask, strict=True)
                ),
            )
            for s in sequences
        ]
    _, before = _learner_gradient(policy, sequences, LossSettings(engine_ratio_cap=2.0), monkeypatch)
    _, after = _learner_gradient(policy, other, LossSettings(engine_ratio_cap=2.0), monkeypatch)
    embedding = policy.model.get_input_embeddings().weight.numel()
    assert torch.equal(before[embedding:], after[embedding:])


def test_a_rollout_that_ends_in_a_tool_result_keeps_its_whole_signal(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    sequences = _sequences(groups=1)
    trailing = [_with_tool_result(sequence, (5, 6, 7)) for sequence in sequences]
    _, plain = _learner_gradient(policy, sequences, LossSettings(), monkeypatch)
    _, with_tool_result = _learner_gradient(policy, trailing, LossSettings(), monkeypatch)
    assert torch.allclose(plain, with_tool_result, atol=1e-14)
    assert plain.abs().max() > 0


@pytest.mark.parametrize(
    "rewards",
    [[1.0], [0.0], [1.0, 1.0, 1.0], [0.0, 0.0], [1.0, 0.0]],
    ids=["one correct", "one wrong", "all correct", "all wrong", "mixed"],
)
@pytest.mark.parametrize("aggregation", ["group_token_mean", "batch_token_mean", "sequence_mean"])
def test_degenerate_groups_stay_finite(policy: Policy, rewards: list[float], aggregation: str) -> None:
    """One sample, equal rewards, or fewer rewards than samples were asked for: no nan, and no signal without spread."""
    sequences = [
        replace(sequence, advantage=advantage)
        for sequence, advantage in zip(_sequences(groups=1), group_advantages(rewards), strict=False)
    ]
    before = torch.cat([p.detach().flatten() for p in policy.model.parameters()])
    settings = LossSettings(aggregation=aggregation)  # type: ignore[arg-type]
    metrics = TorchLearner(policy, OptimizerSettings()).policy_update(sequences, 1e-3, 1.0, settings)
    after = torch.cat([p.detach().flatten() for p in policy.model.parameters()])
    assert math.isfinite(metrics.loss)
    assert math.isfinite(metrics.grad_norm)
    assert after.isfinite().all()
    assert torch.equal(before, after) == (len(set(rewards)) == 1)


def test_metrics_are_means_over_policy_tokens(policy: Policy) -> None:
    sequences = _sequences()
    settings = LossSettings(engine_ratio_cap=1.01)
    metrics = TorchLearner(policy, OptimizerSettings()).policy_update(sequences, 1e-3, 1.0, settings)
    assert metrics.policy_tokens == sum(s.policy_tokens for s in sequences)
    assert metrics.policy_tokens_per_group == metrics.policy_tokens / 3
    assert 0 < metrics.entropy <= math.log(VOCABULARY) + 1e-9
    # The engine claims log-probability -1 throughout, far above that of a random model: nothing reaches the cap.
    assert metrics.mismatch == pytest.approx(math.log(VOCABULARY) - 1, abs=0.5)
    assert metrics.mismatch_kl > 0
    assert 0 < metrics.engine_weight < 1
    assert metrics.engine_truncated_share == 0


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


def test_a_state_that_is_loaded_continues_bit_for_bit(policy: Policy, tmp_path: Path) -> None:
    other = Policy(copy.deepcopy(policy.model), autocast=None)
    learner = TorchLearner(policy, OptimizerSettings())
    learner.supervised_update(_sequences(), 1e-3, 64)
    write = learner.begin_save(tmp_path)
    # Written only now: what the learner does meanwhile is not part of it.
    continued = learner.policy_update(_sequences(), 1e-3, 1.0, LossSettings())
    write()
    resumed = TorchLearner(other, OptimizerSettings())
    resumed.load_saved(tmp_path)
    again = resumed.policy_update(_sequences(), 1e-3, 1.0, LossSettings())
    assert (continued.loss, continued.grad_norm) == (again.loss, again.grad_norm)
    for a, b in zip(policy.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("content", [None, b"", b"junk"])
def test_a_damaged_state_is_an_error_in_one_line(policy: Policy, tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "learner.pt").write_bytes(content)
    with pytest.raises(UserInputError, match="can be read"):
        TorchLearner(policy, OptimizerSettings()).load_saved(tmp_path)


def test_supervised_updates_lower_the_loss(policy: Policy) -> None:
    learner = TorchLearner(policy, OptimizerSettings())
    losses = [learner.supervised_update(_sequences(), 3e-3, 64).loss for _ in range(8)]
    assert losses[-1] < losses[0] - 0.1


def test_nothing_to_learn_from_is_refused(policy: Policy) -> None:
    with pytest.raises(ValueError, match="at least one accepted group"):
        TorchLearner(policy, OptimizerSettings()).policy_update([], 1e-3, 1.0, LossSettings())
