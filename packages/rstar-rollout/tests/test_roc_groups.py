from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar_protos.errors import UserInputError
from rstar_rollout.roc_groups import GroupSelection, SelectionOutcome, select_groups


@pytest.mark.parametrize(
    ("rejected", "wanted", "rounds_done", "max_rounds", "outcome", "refill"),
    [
        ([False, False], 2, 0, 0, SelectionOutcome.COMPLETE, 0),
        ([False, False, False], 2, 1, 3, SelectionOutcome.COMPLETE, 0),
        ([False, True, True], 3, 0, 0, SelectionOutcome.SHORT, 0),  # the paper's recipe
        ([False, True, True], 3, 0, 1, SelectionOutcome.REFILL, 2),
        ([False, True, True], 3, 1, 1, SelectionOutcome.SHORT, 0),
        ([True, True], 2, 0, 2, SelectionOutcome.REFILL, 2),
        ([True, True], 2, 2, 2, SelectionOutcome.SKIP, 0),
        ([], 2, 0, 0, SelectionOutcome.SKIP, 0),
    ],
)
def test_what_comes_next(rejected, wanted, rounds_done, max_rounds, outcome, refill):
    groups = {f"g{i}": value for i, value in enumerate(rejected)}
    selection = select_groups(groups, wanted, rounds_done=rounds_done, max_rounds=max_rounds)
    assert (selection.outcome, selection.refill) == (outcome, refill)
    assert len(selection.accepted_ids) == min(wanted, rejected.count(False))


@given(st.integers(1, 20), st.integers(0, 5), st.randoms(use_true_random=False))
def test_refilling_always_ends(wanted, max_rounds, source):
    groups: dict[str, bool] = {}
    missing, rounds = wanted, 0
    while True:
        groups.update({f"{rounds}/{i}": source.random() < 0.8 for i in range(missing)})
        selection = select_groups(groups, wanted, rounds_done=rounds, max_rounds=max_rounds)
        if selection.outcome is not SelectionOutcome.REFILL:
            break
        missing, rounds = selection.refill, rounds + 1
    assert rounds <= max_rounds
    assert {*selection.accepted_ids, *selection.rejected_ids} == set(groups)


def test_order_is_kept():
    groups = {"c": False, "a": True, "b": False}
    expected = GroupSelection(SelectionOutcome.COMPLETE, ("c", "b"), ("a",))
    assert select_groups(groups, 2) == expected


@pytest.mark.parametrize(("wanted", "done", "most"), [(0, 0, 0), (1, -1, 0), (1, 0, -1)])
def test_numbers_out_of_range_are_refused(wanted, done, most):
    with pytest.raises(UserInputError):
        select_groups({}, wanted, rounds_done=done, max_rounds=most)
