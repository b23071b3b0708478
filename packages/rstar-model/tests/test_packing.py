from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from rstar_model.ledger import TokenLedger  # noqa: E402
from rstar_model.packing import TrainingSequence, pack, split_by_tokens  # noqa: E402
from rstar_model.types import SpanKind  # noqa: E402


@st.composite
def sequences(draw: st.DrawFn) -> list[TrainingSequence]:
    """Several sequences over few ids, so that common prefixes are frequent."""
    found = []
    for _ in range(draw(st.integers(1, 6))):
        length = draw(st.integers(1, 8))
        ids = draw(st.lists(st.integers(0, 2), min_size=length, max_size=length))
        mask = draw(st.lists(st.booleans(), min_size=length, max_size=length))
        probs = [-float(index) if loss else math.nan for index, loss in enumerate(mask)]
        found.append(TrainingSequence(ids, mask, probs))
    return found


def context(batch, position: int) -> list[int]:
    """Ids that the hidden state at a row position has seen, its own token included."""
    (segment,) = [s for s in batch.segments if s.start <= position < s.end]
    seen = [*range(segment.prefix_start, segment.prefix_end), *range(segment.start, position + 1)]
    return batch.token_ids[seen].tolist()


@given(sequences(), st.booleans())
def test_policy_tokens_keep_their_order_in_every_layout(items: list[TrainingSequence], share: bool) -> None:
    batch = pack(items, share_prefix=share)
    expected = [
        (index, token, position)
        for index, item in enumerate(items)
        for position, (token, loss) in enumerate(zip(item.token_ids, item.loss_mask, strict=True))
        if loss
    ]
    columns = (batch.sequence_index, batch.token_ids, batch.position_ids)
    assert list(zip(*(column[batch.loss_mask].tolist() for column in columns), strict=True)) == expected


@given(sequences(), st.booleans())
def test_each_policy_token_is_predicted_from_exactly_the_tokens_before_it(
    items: list[TrainingSequence], share: bool
) -> None:
    batch = pack(items, share_prefix=share)
    for position in batch.loss_mask.nonzero().squeeze(1).tolist():
        item = items[batch.sequence_index[position]]
        before = list(item.token_ids[: batch.position_ids[position]])
        previous = int(batch.previous[position])
        assert (context(batch, previous) if previous >= 0 else []) == before


@given(sequences())
def test_a_shared_prefix_never_costs_tokens_and_carries_no_loss(items: list[TrainingSequence]) -> None:
    plain, shared = pack(items), pack(items, share_prefix=True)
    assert len(shared) <= len(plain) == sum(len(item.token_ids) for item in items)
    for segment in shared.segments:
        assert not shared.loss_mask[segment.prefix_start : segment.prefix_end].any()


@given(sequences(), st.booleans())
def test_segments_cover_the_row_without_gap(items: list[TrainingSequence], share: bool) -> None:
    batch = pack(items, share_prefix=share)
    assert [segment.start for segment in batch.segments] == batch.cu_seqlens[:-1].tolist()
    assert [segment.end for segment in batch.segments] == batch.cu_seqlens[1:].tolist()
    assert batch.cu_seqlens[-1] == len(batch)
    assert all(segment.end > segment.start for segment in batch.segments)


def test_the_prompt_of_a_group_is_computed_once() -> None:
    prompt = [1, 2, 3, 4]
    group = [(prompt + [9] * n, [False] * 4 + [True] * n) for n in (1, 2, 3)]
    other = ([7, 8], [False, True])
    batch = pack([*group, other], share_prefix=True)
    assert len(batch) == 4 + 1 + 2 + 3 + 2
    assert batch.has_shared_prefix


def test_two_groups_keep_their_own_prompts() -> None:
    first = [([1, 2, 3, 9], [False, False, False, True])] * 2
    second = [([1, 5, 6, 9], [False, False, False, True])] * 2
    assert len(pack([*first, *second], share_prefix=True)) == 3 + 2 + 3 + 2


def test_engine_log_probabilities_come_along() -> None:
    ledger = TokenLedger()
    ledger.append(SpanKind.PROMPT, [1])
    ledger.append(SpanKind.POLICY, [2], log_probs=[-0.5], weight_version=0)
    values = pack([ledger]).engine_log_probs
    assert values[0].isnan()
    assert values[1] == -0.5


@pytest.mark.parametrize("items", [[], [([], [])], [([1, 2], [True])], [([1], [True], [-1.0, -1.0])]])
def test_what_cannot_be_packed_is_refused(items) -> None:
    with pytest.raises(ValueError, match=r"pack|tokens but"):
        pack(items)


@given(st.lists(st.integers(1, 20), max_size=20), st.integers(1, 40))
def test_micro_batches_are_a_partition_in_order_within_the_limit(lengths: list[int], limit: int) -> None:
    batches = split_by_tokens(lengths, limit)
    assert [index for batch in batches for index in batch] == list(range(len(lengths)))
    assert all(len(batch) == 1 or sum(lengths[i] for i in batch) <= limit for batch in batches)
