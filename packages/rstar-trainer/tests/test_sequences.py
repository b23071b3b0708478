"""Sequences that the learner is given."""

from __future__ import annotations

import math

import pytest

from rstar_model.ledger import TokenLedger
from rstar_model.types import SpanKind
from rstar_trainer.sequences import WeightedSequence


def test_lengths_are_checked_where_data_crosses_the_border() -> None:
    with pytest.raises(ValueError, match="equally long"):
        WeightedSequence((1, 2, 3), (False, True), (math.nan,) * 3)


def test_the_first_token_cannot_carry_loss() -> None:
    with pytest.raises(ValueError, match="first token"):
        WeightedSequence((1, 2), (True, True), (math.nan, math.nan))


def test_advantages_are_finite() -> None:
    with pytest.raises(ValueError, match="finite"):
        WeightedSequence((1, 2), (False, True), (math.nan, -1.0), 0, math.nan)


def test_only_policy_spans_of_a_ledger_carry_loss() -> None:
    ledger = TokenLedger()
    ledger.append(SpanKind.PROMPT, [1, 2, 3])
    ledger.append(SpanKind.POLICY, [4, 5], log_probs=[-0.5, -0.25], weight_version=1)
    ledger.append(SpanKind.TOOL, [6, 7])
    sequence = WeightedSequence.from_ledger(ledger, group=2, advantage=-1.0)
    assert sequence.policy_tokens == 2
    assert sequence.loss_mask == (False, False, False, True, True, False, False)
    assert sequence.engine_log_probs[3:5] == (-0.5, -0.25)
    assert len(sequence.columns.token_ids) == 7
