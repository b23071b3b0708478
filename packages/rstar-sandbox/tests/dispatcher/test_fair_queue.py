"""The queue that clients share: turns, bounds, and who gives way."""

from __future__ import annotations

import collections

from hypothesis import given
from hypothesis import strategies as st

from rstar_sandbox.dispatcher.fair_queue import Entry, FairQueue


def _drain(queue: FairQueue[int]) -> list[tuple[str, int]]:
    taken = []
    while (entry := queue.pop()) is not None:
        taken.append((entry.client, entry.item))
    return taken


def _put(queue: FairQueue[int], client: str, item: int, **how: bool) -> Entry[int]:
    entry, _ = queue.put(client, item, **how)
    assert entry is not None
    return entry


def test_clients_take_turns_however_much_each_has_waiting() -> None:
    queue: FairQueue[int] = FairQueue(100)
    for number in range(5):
        _put(queue, "flood", number)
    _put(queue, "quiet", 10)
    _put(queue, "other", 20)
    assert [client for client, _ in _drain(queue)] == ["flood", "quiet", "other", *["flood"] * 4]


def test_items_of_one_client_keep_their_order() -> None:
    queue: FairQueue[int] = FairQueue(100)
    for number in range(6):
        _put(queue, "ab"[number % 2], number)
    taken = _drain(queue)
    assert [item for client, item in taken if client == "a"] == [0, 2, 4]
    assert [item for client, item in taken if client == "b"] == [1, 3, 5]


def test_an_item_that_had_its_turn_goes_before_all_others() -> None:
    queue: FairQueue[int] = FairQueue(100)
    _put(queue, "a", 1)
    _put(queue, "b", 2)
    _put(queue, "b", 3, first=True)
    assert _drain(queue)[0] == ("b", 3)


def test_a_full_queue_refuses_the_client_that_fills_it() -> None:
    queue: FairQueue[int] = FairQueue(2)
    _put(queue, "a", 1)
    _put(queue, "a", 2)
    assert queue.put("a", 3) == (None, None)
    assert len(queue) == 2


def test_in_a_full_queue_the_longest_line_gives_way_with_its_newest() -> None:
    queue: FairQueue[int] = FairQueue(3)
    for number in range(3):
        _put(queue, "flood", number)
    entry, dropped = queue.put("quiet", 9)
    assert entry is not None
    assert dropped is not None
    assert (dropped.client, dropped.item, dropped.waiting) == ("flood", 2, False)
    assert _drain(queue) == [("flood", 0), ("quiet", 9), ("flood", 1)]


def test_nobody_gives_way_for_a_client_that_would_then_have_the_longest_line() -> None:
    queue: FairQueue[int] = FairQueue(2)
    _put(queue, "a", 1)
    _put(queue, "b", 2)
    assert queue.put("a", 3) == (None, None)


def test_those_that_bound_themselves_are_neither_refused_nor_dropped() -> None:
    queue: FairQueue[int] = FairQueue(1)
    for number in range(4):
        _put(queue, "stream", number, bounded=False)
    _put(queue, "a", 9)
    assert queue.put("b", 10) == (None, None)
    assert len(queue) == 5


def test_what_is_removed_does_not_come_back() -> None:
    queue: FairQueue[int] = FairQueue(10)
    entries = [_put(queue, "a", number) for number in range(4)]
    for entry in (entries[1], entries[3], entries[3]):
        queue.remove(entry)
    assert len(queue) == 2
    assert _drain(queue) == [("a", 0), ("a", 2)]
    assert queue.clients == 0


_ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from("abc"), st.booleans()),
        st.tuples(st.just("pop"), st.just(""), st.just(False)),
        st.tuples(st.just("remove"), st.just(""), st.booleans()),
    ),
    max_size=60,
)


@given(_ACTIONS, st.integers(0, 5))
def test_every_item_leaves_once_and_counts_stay_true(actions: list[tuple[str, str, bool]], limit: int) -> None:
    queue: FairQueue[int] = FairQueue(limit)
    waiting: list[Entry[int]] = []
    left: collections.Counter[int] = collections.Counter()
    for number, (action, client, flag) in enumerate(actions):
        if action == "put":
            entry, dropped = queue.put(client, number, bounded=flag)
            if dropped is not None:
                waiting.remove(dropped)
                left[dropped.item] += 1
            if entry is not None:
                waiting.append(entry)
        elif action == "pop" and (entry := queue.pop()) is not None:
            waiting.remove(entry)
            left[entry.item] += 1
        elif action == "remove" and waiting:
            entry = waiting.pop(0 if flag else -1)
            queue.remove(entry)
            left[entry.item] += 1
        assert len(queue) == len(waiting)
        assert sum(entry.bounded for entry in waiting) <= limit
    assert {item for _, item in _drain(queue)} == {entry.item for entry in waiting}
    assert set(left.values()) <= {1}
