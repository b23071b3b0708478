"""How a batch is dealt out over ranks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rstar_trainer.backends.dealing import deal, passes_of_each_rank

LENGTHS = st.lists(st.integers(1, 400), max_size=40)


@given(lengths=LENGTHS, ranks=st.integers(1, 9))
def test_every_sequence_goes_to_one_rank_and_neighbours_stay_together(lengths: list[int], ranks: int) -> None:
    shares = deal(lengths, ranks)
    assert len(shares) == ranks
    assert [index for share in shares for index in share] == list(range(len(lengths)))


@given(lengths=LENGTHS, ranks=st.integers(1, 9))
def test_no_rank_has_more_than_its_part_and_one_sequence(lengths: list[int], ranks: int) -> None:
    for share in deal(lengths, ranks):
        assert sum(lengths[index] for index in share) <= sum(lengths) / ranks + max(lengths, default=0)


@given(lengths=LENGTHS)
def test_a_single_rank_gets_the_batch_as_it_is(lengths: list[int]) -> None:
    assert deal(lengths, 1) == [list(range(len(lengths)))]


def test_passes_follow_from_the_token_budget() -> None:
    lengths = [60, 60, 60, 10, 10]
    assert passes_of_each_rank(lengths, [[0, 1, 2], [3, 4], []], 100) == [3, 1, 0]
