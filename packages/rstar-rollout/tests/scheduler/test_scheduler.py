"""The scheduler with each policy: what is placed where, what waits, what a lost engine leads to."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar_protos.errors import UserInputError
from rstar_rollout.scheduler.load import EngineCapacity, RolloutSpec
from rstar_rollout.scheduler.policies import KvBalanced, LeastInFlight, StaticSplit
from rstar_rollout.scheduler.registry import POLICIES, make_policy
from rstar_rollout.scheduler.scheduler import RolloutScheduler


def engine(name: str, blocks: int = 100, slots: int = 100) -> EngineCapacity:
    return EngineCapacity(name, blocks, 10, slots)


def group(name: str, count: int, prompt: int = 20, limit: int = 80) -> list[RolloutSpec]:
    return [RolloutSpec(f"{name}/{index}", name, prompt, limit) for index in range(count)]


def reserved(scheduler: RolloutScheduler) -> dict[str, int]:
    return {load.engine_id: load.reserved_blocks for load in scheduler.loads}


def test_worst_case_reservations_never_exceed_the_cache():
    scheduler = RolloutScheduler(KvBalanced(), [engine("a"), engine("b")])
    scheduler.submit([spec for index in range(10) for spec in group(str(index), 1)])
    assert len(scheduler.place()) == 10
    scheduler.submit([spec for index in range(10, 40) for spec in group(str(index), 1)])
    scheduler.place()
    # 10 blocks a rollout, 100 an engine.
    assert reserved(scheduler) == {"a": 100, "b": 100}
    assert scheduler.waiting == 20


def test_a_finished_rollout_lets_the_next_in_at_once():
    scheduler = RolloutScheduler(KvBalanced(), [engine("a", blocks=10)])
    scheduler.submit([*group("x", 1), *group("y", 1)])
    assert scheduler.place() == [("x/0", "a")]
    assert scheduler.place() == []
    scheduler.finish("x/0", 5)
    assert scheduler.place() == [("y/0", "a")]


def test_the_prompt_of_a_group_is_reserved_once():
    scheduler = RolloutScheduler(KvBalanced(), [engine("a")])
    scheduler.submit(group("g", 3))
    scheduler.place()
    assert reserved(scheduler) == {"a": 10 + 8 + 8}
    for index in range(3):
        scheduler.finish(f"g/{index}", 1)
    assert reserved(scheduler) == {"a": 0}


def test_rollouts_of_a_group_share_an_engine_within_its_fair_share():
    scheduler = RolloutScheduler(KvBalanced(), [engine("a", 1000), engine("b", 1000)])
    scheduler.submit([*group("g", 4), *group("h", 4)])
    placed = scheduler.place()
    assert {engine_id for rollout, engine_id in placed if rollout.startswith("g")} == {"a"}
    assert {engine_id for rollout, engine_id in placed if rollout.startswith("h")} == {"b"}


def test_affinity_leaves_no_engine_idle():
    names = [f"e{index}" for index in range(8)]
    scheduler = RolloutScheduler(KvBalanced(), [engine(name, 1000) for name in names])
    scheduler.submit(group("g", 8))
    assert {engine_id for _, engine_id in scheduler.place()} == set(names)


def test_a_rollout_larger_than_any_cache_runs_alone():
    scheduler = RolloutScheduler(KvBalanced(), [engine("a", blocks=5)])
    scheduler.submit([*group("huge", 1, limit=10_000), *group("x", 1, prompt=1, limit=1)])
    assert scheduler.place() == [("huge/0", "a")]
    scheduler.finish("huge/0", 7)
    assert scheduler.place() == [("x/0", "a")]


def test_long_rollouts_are_not_overtaken():
    scheduler = RolloutScheduler(KvBalanced(), [engine("a", blocks=12)])
    scheduler.submit([*group("x", 1), *group("y", 1), *group("small", 1, prompt=1, limit=1)])
    assert scheduler.place() == [("x/0", "a")]
    scheduler.finish("x/0", 1)
    assert scheduler.place()[0] == ("y/0", "a")


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_slots_are_kept_by_every_policy(name: str):
    scheduler = RolloutScheduler(make_policy(name), [engine("a", 10_000, slots=3), engine("b", 10_000, slots=2)])
    scheduler.submit(group("g", 9))
    assert Counter(engine_id for _, engine_id in scheduler.place()) == {"a": 3, "b": 2}


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_rollouts_of_a_lost_engine_are_placed_elsewhere(name: str):
    scheduler = RolloutScheduler(make_policy(name), [engine("a", 10_000), engine("b", 10_000)])
    scheduler.submit(group("g", 6))
    placed = dict(scheduler.place())
    moved = scheduler.remove_engine("a")
    assert sorted(moved) == sorted(rollout for rollout, engine_id in placed.items() if engine_id == "a")
    assert sorted(scheduler.place()) == sorted((rollout, "b") for rollout in moved)


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_without_engines_rollouts_wait_for_one(name: str):
    scheduler = RolloutScheduler(make_policy(name))
    scheduler.submit(group("g", 3))
    assert scheduler.place() == []
    scheduler.add_engine(engine("late", 10_000))
    assert len(scheduler.place()) == 3


def test_rollouts_that_lost_their_engine_go_first():
    scheduler = RolloutScheduler(KvBalanced(), [engine("a", blocks=10), engine("b", blocks=10)])
    scheduler.submit([*group("x", 1), *group("y", 1), *group("z", 1)])
    scheduler.place()
    scheduler.remove_engine("a")
    scheduler.finish("y/0", 1)
    assert scheduler.place() == [("x/0", "b")]


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_a_waiting_rollout_can_be_given_up(name: str):
    scheduler = RolloutScheduler(make_policy(name), [engine("a", blocks=10, slots=1)])
    scheduler.submit([*group("x", 1), *group("y", 1), *group("z", 1)])
    scheduler.place()
    scheduler.finish("y/0", None)
    scheduler.finish("x/0", 3)
    assert scheduler.place() == [("z/0", "a")]


def test_static_splits_a_batch_evenly_in_order():
    scheduler = RolloutScheduler(StaticSplit(), [engine("a", 1), engine("b", 1)])
    scheduler.submit([*group("x", 2), *group("y", 2)])
    assert dict(scheduler.place()) == {"x/0": "a", "x/1": "a", "y/0": "b", "y/1": "b"}


def test_least_in_flight_follows_the_load():
    scheduler = RolloutScheduler(LeastInFlight(), [engine("a", 1), engine("b", 1)])
    scheduler.submit(group("x", 4))
    scheduler.place()
    for rollout in ("x/0", "x/2"):
        assert scheduler.engine_of(rollout) == "a"
        scheduler.finish(rollout, 1)
    scheduler.submit(group("y", 2))
    assert {engine_id for _, engine_id in scheduler.place()} == {"a"}


def test_an_unknown_policy_is_refused_by_name():
    with pytest.raises(UserInputError, match="kv_balanced"):
        make_policy("round_robin")


LENGTHS = st.lists(st.tuples(st.integers(1, 300), st.integers(1, 400)), min_size=1, max_size=60)


@given(LENGTHS, st.sampled_from(sorted(POLICIES)), st.integers(0, 2**32))
def test_every_rollout_is_placed_once_and_nothing_stays_reserved(
    lengths: list[tuple[int, int]], name: str, choice: int
):
    scheduler = RolloutScheduler(make_policy(name), [engine("a", 60, 4), engine("b", 40, 7)])
    specs = [RolloutSpec(str(i), str(i // 4), prompt, limit) for i, (prompt, limit) in enumerate(lengths)]
    scheduler.submit(specs)
    running: list[str] = []
    seen: list[str] = []
    while True:
        placed = [rollout for rollout, _ in scheduler.place()]
        seen += placed
        running += placed
        if not running:
            break
        choice, index = divmod(choice, len(running))
        choice = choice or 2**31 - 1
        rollout = running.pop(index)
        scheduler.begin_turn(rollout)
        scheduler.advance("a", 3)
        scheduler.finish(rollout, specs[int(rollout)].max_new_tokens // 2)
        if name == "kv_balanced":
            assert all(load.reserved_blocks <= load.capacity.kv_blocks for load in scheduler.loads)
    assert sorted(seen) == sorted(spec.rollout_id for spec in specs)
    assert reserved(scheduler) == {"a": 0, "b": 0}
    assert scheduler.waiting == scheduler.in_flight == 0
