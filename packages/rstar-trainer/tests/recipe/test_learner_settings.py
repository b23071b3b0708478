"""The learner's section of a recipe."""

from __future__ import annotations

import pytest

from rstar_protos.errors import UserInputError
from rstar_trainer.recipe import load_recipe


def test_the_default_is_a_single_process() -> None:
    assert load_recipe("quickstart").learner.backend == "torch"


def test_ranks_are_taken_from_the_command_line() -> None:
    learner = load_recipe(
        "quickstart", ["learner.backend=deepspeed", "learner.ranks=2", "learner.zero_stage=3"]
    ).learner
    assert (learner.backend, learner.ranks, learner.zero_stage) == ("deepspeed", 2, 3)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (["learner.ranks=2"], 'backend = "deepspeed" with more than one rank'),
        (["learner.backend=deepspeed", "learner.zero_stage=4"], "learner.zero_stage"),
        (["learner.backend=deepspeed", "learner.zero_stage=0", "learner.cpu_offload=true"], "zero_stage of at least 1"),
        (["learner.backend=deepspeed", "learner.zero_stage=0", "learner.dtype=bfloat16"], "zero_stage of at least 1"),
        (["learner.backend=deepspeed", "learner.ranks=4", "learner.sequence_parallel=3"], "that divides ranks"),
        (["learner.sequence_parallel=2"], "that divides ranks"),
        (["learner.backend=megatron"], "learner.backend"),
        (["learner.gpus_per_rank=2"], "learner.gpus_per_rank"),
    ],
)
def test_what_does_not_fit_is_told_with_its_field(settings: list[str], told: str) -> None:
    with pytest.raises(UserInputError, match=told):
        load_recipe("quickstart", settings)
