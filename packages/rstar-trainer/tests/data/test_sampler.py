"""The order of problems: every one once per epoch, and exactly continued from any state."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar_protos.errors import UserInputError
from rstar_trainer.data import ProblemSampler, TrainProblem


def problems(count: int) -> list[TrainProblem]:
    return [TrainProblem(str(index), f"problem {index}", str(index), "test") for index in range(count)]


def ids(sampler: ProblemSampler, count: int) -> list[str]:
    return [problem.problem_id for problem in sampler.draw(count)]


SIZES_AND_DRAWS = st.integers(1, 12).flatmap(
    lambda size: st.tuples(st.just(size), st.lists(st.integers(0, size), min_size=1, max_size=20))
)


@given(SIZES_AND_DRAWS, st.integers(0, 5))
def test_a_draw_holds_no_problem_twice(case: tuple[int, list[int]], seed: int) -> None:
    size, draws = case
    sampler = ProblemSampler(problems(size), seed)
    for count in draws:
        drawn = ids(sampler, count)
        assert len(drawn) == count == len(set(drawn))


@given(SIZES_AND_DRAWS, st.integers(0, 5))
def test_every_problem_is_drawn_equally_often_within_one(case: tuple[int, list[int]], seed: int) -> None:
    size, draws = case
    sampler = ProblemSampler(problems(size), seed)
    drawn = [problem_id for count in draws for problem_id in ids(sampler, count)]
    counts = [drawn.count(str(index)) for index in range(size)]
    # Putting a problem off to the next draw lets another one be ahead of it by one more.
    assert max(counts) - min(counts) <= 2


@given(SIZES_AND_DRAWS, st.integers(0, 20), st.integers(0, 5))
def test_a_state_continues_exactly(case: tuple[int, list[int]], cut: int, seed: int) -> None:
    size, draws = case
    whole = ProblemSampler(problems(size), seed)
    expected = [ids(whole, count) for count in draws]
    first = ProblemSampler(problems(size), seed)
    done = [ids(first, count) for count in draws[:cut]]
    second = ProblemSampler(problems(size), seed)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert done + [ids(second, count) for count in draws[cut:]] == expected


def test_one_epoch_is_a_permutation() -> None:
    assert sorted(ids(ProblemSampler(problems(10), 1), 10), key=int) == [str(index) for index in range(10)]


def test_seeds_and_epochs_have_their_own_orders() -> None:
    sampler = ProblemSampler(problems(50), 1)
    orders = [ids(sampler, 50), ids(sampler, 50), ids(ProblemSampler(problems(50), 2), 50)]
    assert len({tuple(order) for order in orders}) == 3
    assert sampler.epoch == 1


def test_the_order_does_not_change_between_versions() -> None:
    assert ids(ProblemSampler(problems(6), 1), 6) == ["2", "1", "5", "3", "0", "4"]


def test_more_problems_than_there_are_is_an_input_error() -> None:
    with pytest.raises(UserInputError, match="at most the 3"):
        ProblemSampler(problems(3), 1).draw(4)


def test_changed_problems_are_noticed() -> None:
    state = ProblemSampler(problems(3), 1).state_dict()
    with pytest.raises(UserInputError, match="the problems that the checkpoint"):
        ProblemSampler(problems(4), 1).load_state_dict(state)


def test_a_changed_seed_is_noticed() -> None:
    state = ProblemSampler(problems(3), 1).state_dict()
    with pytest.raises(UserInputError, match="seed 1"):
        ProblemSampler(problems(3), 2).load_state_dict(state)
