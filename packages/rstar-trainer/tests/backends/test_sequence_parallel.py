"""Rows that ranks compute together; parity is in test_zero_rank.py."""

from __future__ import annotations

import pytest

pytest.importorskip("deepspeed")

import torch
from transformers import LlamaConfig

from rstar_model.packing import PackedBatch, pack
from rstar_model.policy import Policy
from rstar_protos.errors import UserInputError
from rstar_trainer.backends.sequence_parallel import SequenceParallel, padded

pytestmark = pytest.mark.heavy


def row() -> PackedBatch:
    return pack([(range(1, 8), [False] * 3 + [True] * 4), (range(20, 26), [False] + [True] * 5)])


@pytest.mark.parametrize(("multiple", "length"), [(1, 13), (2, 14), (4, 16), (13, 13)])
def test_a_row_is_as_long_as_ranks_can_share(multiple: int, length: int) -> None:
    assert len(padded(row(), multiple)) == length


def test_idle_tokens_change_nothing_and_carry_no_loss() -> None:
    config = LlamaConfig(
        vocab_size=41, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2
    )
    policy, longer = Policy.from_config(config), padded(row(), 8)
    found, expected = (policy.forward_log_probs(each).log_probs for each in (longer, row()))
    assert torch.equal(found[:13], expected)
    assert not found[13:].any()
    assert int(longer.loss_mask.sum()) == int(row().loss_mask.sum())


@pytest.mark.parametrize("size", [3, 8])
def test_heads_that_cannot_be_shared_out_are_told(size: int) -> None:
    config = LlamaConfig(hidden_size=96, num_attention_heads=24 if size == 8 else 4, num_key_value_heads=6)
    with pytest.raises(UserInputError, match=r"learner\.sequence_parallel: .*heads"):
        SequenceParallel(size, config)
