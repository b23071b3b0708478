"""The learner on the real small model in float32 against the library's plain, unpacked forward pass."""

from __future__ import annotations

import math
import random

import pytest
import torch
import transformers

from rstar_model.chat_format import ChatFormat
from rstar_model.fetch import fetch
from rstar_model.policy import Policy
from rstar_model.tokenizer import load_tokenizer
from rstar_trainer.learner import TorchLearner
from rstar_trainer.objective import group_advantages
from rstar_trainer.problems import sft_examples
from rstar_trainer.recipe import LossSettings, OptimizerSettings
from rstar_trainer.sequences import WeightedSequence
from rstar_trainer.sft import demonstration_ledger

pytestmark = pytest.mark.heavy


def test_gradient_and_loss_are_those_of_the_plain_model(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = fetch("smollm2-135m").path
    tokenizer, chat_format, rng = load_tokenizer(folder), ChatFormat.load("rstar"), random.Random(2)
    sequences = []
    # Different texts: the gradients of one text with opposite advantages would be nothing to compare.
    for index, example in enumerate(sft_examples(4, 5)):
        ledger = demonstration_ledger((example.problem.text, example.turns), chat_format, tokenizer)
        cut = len(ledger) - rng.randint(0, 6)
        columns = tuple(ledger.token_ids[:cut]), tuple(ledger.loss_mask[:cut]), (math.nan,) * cut
        sequences.append(WeightedSequence(*columns, index // 2, group_advantages([1.0, 0.0])[index % 2]))
    policy = Policy.load(folder, autocast=None)
    learner, seen = TorchLearner(policy, OptimizerSettings()), []

    def keep(rate: float) -> float:
        seen.append(torch.cat([p.grad.flatten() for p in policy.model.parameters()]))
        return 0.0

    monkeypatch.setattr(learner, "_step", keep)
    metrics = learner.policy_update(sequences, 1e-6, 1.0, LossSettings(micro_batch_tokens=900))

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    loss = torch.zeros(())
    for sequence in sequences:
        ids = torch.tensor([sequence.token_ids])
        log_probs = torch.log_softmax(model(ids).logits[0, :-1].float(), -1).gather(1, ids[0, 1:, None]).squeeze(1)
        chosen = log_probs[torch.tensor(sequence.loss_mask[1:])]
        in_group = sum(s.policy_tokens for s in sequences if s.group == sequence.group)
        loss = loss - ((chosen - chosen.detach()).exp() * sequence.advantage).sum() / in_group / 2
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    expected = torch.cat([gradient.flatten() for gradient in gradients])
    assert torch.linalg.norm(expected) > 0.01
    assert metrics.loss == pytest.approx(float(loss.detach()), abs=1e-5)
    assert torch.linalg.norm(seen[0] - expected) <= 1e-4 * torch.linalg.norm(expected)
