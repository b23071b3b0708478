"""What is sent along with weights for engines that check what they have loaded."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig

from rstar_model.policy import Policy
from rstar_model.weights import read_manifest
from rstar_trainer.canary import sing_canary
from rstar_trainer.learner import TorchLearner
from rstar_trainer.recipe import OptimizerSettings

IDS = (3, 14, 15, 9, 2, 6)


@pytest.fixture
def policy() -> Policy:
    config = LlamaConfig(
        vocab_size=17, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2
    )
    return Policy.from_config(config, seed=5)


def test_log_probabilities_are_those_of_the_text(policy: Policy) -> None:
    with torch.no_grad():
        table = policy.model(torch.tensor([IDS])).logits[0].log_softmax(-1)
    expected = [float(table[position, token]) for position, token in enumerate(IDS[1:])]
    canary = sing_canary(policy, IDS)
    assert canary.token_ids == IDS
    assert canary.log_probs == pytest.approx(expected, abs=1e-5)


def test_a_canary_leaves_no_gradient(policy: Policy) -> None:
    sing_canary(policy, IDS)
    assert all(parameter.grad is None for parameter in policy.model.parameters())


def test_canary_and_digests_go_into_the_manifest(policy: Policy, tmp_path: Path) -> None:
    learner = TorchLearner(policy, OptimizerSettings(), "float32", IDS)
    learner.write_weights(tmp_path / "weights", 4)
    found = read_manifest(tmp_path / "weights")
    assert found.canary == sing_canary(policy, IDS)
    assert found.digests.keys() == found.parameters.keys()


def test_without_a_canary_there_are_no_digests_either(policy: Policy, tmp_path: Path) -> None:
    TorchLearner(policy, OptimizerSettings(), "float32").write_weights(tmp_path / "weights", 4)
    found = read_manifest(tmp_path / "weights")
    assert (found.canary, dict(found.digests)) == (None, {})
