"""What a stage accepts."""

import re
from typing import Any

import pytest
from pydantic import ValidationError

from rstar_trainer.recipe import Stage

VALUES: dict[str, Any] = {
    "name": "rl-1",
    "steps": 4,
    "problems_per_step": 6,
    "group_size": 8,
    "max_turns": 3,
    "max_response_tokens": 64,
    "learning_rate": 1e-5,
}


def stage(**changes: Any) -> Stage:
    return Stage.model_validate({**VALUES, **changes})


def refused(**changes: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        stage(**changes)
    return str(caught.value)


@pytest.mark.parametrize("group_size", [8, "8"])
def test_twice_the_group_is_rolled_out_by_default(group_size: int | str) -> None:
    assert stage(group_size=group_size).rollouts_per_problem == 16


def test_the_papers_loss_is_the_default() -> None:
    loss = stage().loss
    assert (loss.clip_low, loss.clip_high, loss.aggregation, loss.advantage) == (0.2, 0.28, "group_token_mean", "std")


def test_a_group_larger_than_its_rollouts_is_refused() -> None:
    assert "rollouts_per_problem (4), not 8" in refused(rollouts_per_problem=4)


def test_a_group_may_keep_every_rollout() -> None:
    assert stage(rollouts_per_problem=8).rollouts_per_problem == 8


def test_odd_sizes_are_fine() -> None:
    assert stage(group_size=7, rollouts_per_problem=8).group_size == 7


@pytest.mark.parametrize("group_size", [0, 1, -4, "four", 2.5])
def test_groups_that_cannot_be_compared_are_refused(group_size: object) -> None:
    assert "group_size" in refused(group_size=group_size)


@pytest.mark.parametrize("name", ["", "1", "base", "sft", "hard", "a b", "a/b", "../x", "a.b", "ä"])
def test_names_that_clash_or_are_no_file_names_are_refused(name: str) -> None:
    assert "name" in refused(name=name)


def test_warm_up_fits_into_the_stage() -> None:
    assert "warmup_steps" in refused(warmup_steps=5)


def test_hard_data_needs_the_filter() -> None:
    assert "hard_filter" in refused(data="hard")


def test_the_filter_looks_at_enough_problems_for_a_step() -> None:
    assert "problems_per_step (6), not 5" in refused(data="hard", hard_filter={"problems": 5})


@pytest.mark.parametrize(
    "change", [{"temperature": 0}, {"learning_rate": 0}, {"learning_rate": float("nan")}, {"steps": 0}]
)
def test_values_that_train_nothing_are_refused(change: dict[str, float]) -> None:
    assert next(iter(change)) in refused(**change)


PARTIAL = {"partial": {"extra_problems": 2}, "loss": {"engine_ratio_cap": 2.0}}


def test_partial_rollouts_are_off_by_default() -> None:
    assert stage().partial is None
    assert stage().problems_under_way == 6


def test_partial_rollouts_have_more_problems_under_way_than_a_step_trains_on() -> None:
    assert stage(**PARTIAL).problems_under_way == 8


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"loss": {}}, "engine_ratio_cap"),
        ({"refill_rounds": 1}, "refill_rounds"),
        ({"partial": {"extra_problems": 0}}, "extra_problems"),
        ({"partial": {"extra_problems": 2, "max_steps": 0}}, "max_steps"),
        ({"data": "hard", "hard_filter": {"problems": 7}}, r"partial.extra_problems \(8\), not 7"),
    ],
    ids=str,
)
def test_what_partial_rollouts_do_not_go_with_is_refused(change: dict[str, Any], told: str) -> None:
    assert re.search(told, refused(**{**PARTIAL, **change}))
