from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar_model.ledger import LedgerError, Span, TokenLedger
from rstar_model.types import SpanKind

ids = st.lists(st.integers(0, 2**31 - 1), max_size=6)


@st.composite
def ledgers(draw: st.DrawFn) -> TokenLedger:
    """Any ledger that an agent loop could build."""
    ledger = TokenLedger()
    for _ in range(draw(st.integers(0, 2))):
        ledger.append(SpanKind.PROMPT, draw(ids))
    for turn in range(draw(st.integers(0, 4))):
        for kind in draw(st.lists(st.sampled_from([SpanKind.TEMPLATE, SpanKind.TOOL]), max_size=3)):
            ledger.append(kind, draw(ids), turn=turn)
        tokens = draw(ids)
        probs = draw(st.lists(st.floats(-50, 0), min_size=len(tokens), max_size=len(tokens)))
        ledger.append(SpanKind.POLICY, tokens, log_probs=probs, weight_version=draw(st.integers(0, 9)), turn=turn)
    return ledger


@given(ledgers())
def test_all_columns_are_as_long_as_the_ids(ledger: TokenLedger) -> None:
    columns = (ledger.token_ids, ledger.loss_mask, ledger.log_probs, ledger.weight_versions, ledger.kinds)
    assert {len(column) for column in columns} == {len(ledger)}


@given(ledgers())
def test_loss_is_where_an_engine_gave_a_log_probability_and_nowhere_else(ledger: TokenLedger) -> None:
    assert ledger.loss_mask == [not math.isnan(value) for value in ledger.log_probs]


@given(ledgers())
def test_prompt_and_response_make_up_the_whole(ledger: TokenLedger) -> None:
    assert ledger.prompt_length + ledger.response_length == len(ledger)
    assert not any(ledger.loss_mask[: ledger.prompt_length])


@given(ledgers())
def test_appending_the_spans_again_gives_the_same_ledger(ledger: TokenLedger) -> None:
    assert TokenLedger(ledger.spans) == ledger


def test_the_opening_of_the_first_assistant_turn_belongs_to_the_prompt() -> None:
    ledger = TokenLedger([Span(SpanKind.PROMPT, (1, 2)), Span(SpanKind.TEMPLATE, (3,))])
    ledger.append(SpanKind.POLICY, [4], log_probs=[-1.0], weight_version=0)
    ledger.append(SpanKind.TEMPLATE, [5], turn=1)
    assert (ledger.prompt_length, ledger.response_length) == (3, 2)


def test_a_span_without_tokens_leaves_no_trace() -> None:
    ledger = TokenLedger()
    ledger.append(SpanKind.POLICY, [], log_probs=[], weight_version=1)
    assert ledger.spans == ()


def test_a_demonstration_has_loss_without_log_probabilities() -> None:
    ledger = TokenLedger(demonstration=True)
    ledger.append(SpanKind.PROMPT, [1])
    ledger.append(SpanKind.POLICY, [2, 3])
    assert ledger.loss_mask == [False, True, True]
    assert all(map(math.isnan, ledger.log_probs))


@pytest.mark.parametrize(
    "broken",
    [
        {"kind": SpanKind.POLICY, "token_ids": [5]},  # an appended end token has no engine log-probability
        {"kind": SpanKind.POLICY, "token_ids": [5, 6], "log_probs": [-1.0], "weight_version": 1},
        {"kind": SpanKind.POLICY, "token_ids": [5], "log_probs": [math.nan], "weight_version": 1},
        {"kind": SpanKind.POLICY, "token_ids": [5], "log_probs": [-math.inf], "weight_version": 1},
        {"kind": SpanKind.POLICY, "token_ids": [5], "log_probs": [-1.0]},
        {"kind": SpanKind.TOOL, "token_ids": [5], "log_probs": [-1.0]},
        {"kind": SpanKind.TEMPLATE, "token_ids": [5], "weight_version": 1},
        {"kind": SpanKind.TEMPLATE, "token_ids": [-1]},
        {"kind": SpanKind.TEMPLATE, "token_ids": [2**31]},
        {"kind": SpanKind.PROMPT, "token_ids": [5]},  # after a template span
        {"kind": SpanKind.TEMPLATE, "token_ids": [5], "turn": -1},
    ],
)
def test_a_broken_span_is_refused_and_leaves_the_ledger_unchanged(broken) -> None:
    ledger = TokenLedger([Span(SpanKind.PROMPT, (1,)), Span(SpanKind.TEMPLATE, (2,))])
    before = ledger.spans
    with pytest.raises(LedgerError):
        ledger.append(**broken)
    assert ledger.spans == before


def test_turns_only_go_forward() -> None:
    ledger = TokenLedger([Span(SpanKind.TEMPLATE, (1,), turn=2)])
    with pytest.raises(LedgerError):
        ledger.append(SpanKind.TEMPLATE, [1], turn=1)


def test_tokens_without_loss_are_still_part_of_the_sequence() -> None:
    """RLinf#318: what carries no loss is masked in the loss alone; ids, lengths and attention keep it."""
    ledger = TokenLedger()
    ledger.append(SpanKind.PROMPT, [1, 2])
    ledger.append(SpanKind.POLICY, [3], log_probs=[-1.0], weight_version=0)
    ledger.append(SpanKind.TOOL, [4, 5, 6])
    assert ledger.token_ids == [1, 2, 3, 4, 5, 6]
    assert ledger.loss_mask == [False, False, True, False, False, False]
    assert (ledger.prompt_length, ledger.response_length, ledger.policy_length) == (2, 4, 1)
