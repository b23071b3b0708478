"""Memory of a DeepSpeed rank."""

import io

import pytest
from rich.console import Console

from rstar_trainer.model_shape import ModelShape
from rstar_trainer.plan import MemoryPlan, make_plan
from rstar_trainer.plan_view import print_plan
from rstar_trainer.rank_memory import RankMemory, rank_memory
from rstar_trainer.recipe import LearnerSettings, load_recipe

SHAPE = ModelShape(parameters=1000, layers=4, hidden=10, kv_heads=1, head_dim=10, vocabulary=20)


def of(stage: int, ranks: int = 4, **settings: object) -> RankMemory:
    learner = LearnerSettings(backend="deepspeed", ranks=ranks, zero_stage=stage, **settings)  # type: ignore[arg-type]
    return rank_memory(learner, SHAPE, activations=7, logits=5)


def planned(*overrides: str) -> MemoryPlan:
    memory = make_plan(load_recipe("quickstart", ["learner.backend=deepspeed", *overrides])).memory
    assert memory is not None
    return memory


@pytest.mark.parametrize(
    ("stage", "parameters", "gradients", "optimizer"),
    [(0, 4000, 4000, 8000), (1, 4000, 4000, 3000), (2, 4000, 1000, 3000), (3, 1000, 1000, 3000)],
)
def test_each_stage_shards_one_part_more(stage: int, parameters: int, gradients: int, optimizer: int) -> None:
    found = of(stage)
    assert (found.parameters, found.gradients, found.optimizer) == (parameters, gradients, optimizer)


def test_bfloat16_halves_the_parameters_and_not_the_masters() -> None:
    assert of(2, dtype="bfloat16").parameters == of(2).parameters / 2
    assert of(2, dtype="bfloat16").optimizer == of(2).optimizer


def test_parameters_in_use_are_whole_in_stage_3_only() -> None:
    assert of(2).gathered == 0
    assert of(3).gathered == (20 * 10 + 2 * (1000 - 200) // 4) * 4


def test_offload_moves_the_optimizer_to_the_host() -> None:
    found = of(2, cpu_offload=True)
    assert (found.optimizer, found.gradients) == (0, 0)
    assert found.host == of(2).optimizer + of(2).gradients
    assert found.device < of(2).device


def test_what_is_not_divisible_is_rounded_up() -> None:
    assert of(3, ranks=3).parameters == 334 * 4


def test_the_device_has_everything_but_the_host_part() -> None:
    found = of(3)
    parts = (found.parameters, found.gathered, found.gradients, found.reduce_buckets, found.optimizer, 7, 5)
    assert found.device == sum(parts)


def test_cpu_ranks_of_a_ray_of_their_own_count_on_this_machine() -> None:
    here, elsewhere = planned("learner.ranks=2"), planned("learner.ranks=2", "learner.ray_address=auto")
    assert here.rank is not None
    assert here.total - elsewhere.total == 2 * here.rank.device
    assert here.trainer_state == here.checkpoint_copy == 0


def test_the_plan_prints_each_rank() -> None:
    text = io.StringIO()
    recipe = load_recipe("quickstart", ["learner.backend=deepspeed", "learner.ranks=2", "learner.cpu_offload=true"])
    print_plan(make_plan(recipe), Console(file=text, width=150))
    assert "memory of each of 2 ranks, ZeRO stage 2" in text.getvalue()
    assert "on the host" in text.getvalue()
    assert "fp32 weights" not in text.getvalue()
