"""The arithmetic of a plan."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from rstar_trainer.plan import Plan, make_plan
from rstar_trainer.plan_view import print_plan
from rstar_trainer.recipe import load_recipe

SIZES = [
    "stages.rl-1.steps=5", "stages.rl-1.problems_per_step=7", "stages.rl-1.group_size=3",
    "stages.rl-1.rollouts_per_problem=6", "stages.rl-1.max_response_tokens=100",
]  # fmt: skip


def plan(*overrides: str) -> Plan:
    return make_plan(load_recipe("quickstart", overrides))


def stage(made: Plan, name: str) -> dict[str, float]:
    return next(values for values in made.to_json_dict()["stages"] if values["name"] == name)


def test_rollouts_and_tokens_of_a_stage() -> None:
    found = stage(plan(*SIZES), "rl-1")
    assert found["rollouts_per_step"] == 7 * 6
    assert found["trained_rollouts_per_step"] == 7 * 3
    assert found["rollouts"] == 5 * 7 * 6
    assert found["max_generated_tokens"] == 5 * 7 * 6 * 100


def test_problems_under_way_beyond_a_step_are_counted_once() -> None:
    made = plan(*SIZES, "stages.rl-1.partial={extra_problems=2}", "stages.rl-1.loss.engine_ratio_cap=2.0")
    found = stage(made, "rl-1")
    assert found["rollouts"] == (5 * 7 + 2) * 6
    assert found["max_generated_tokens"] == (5 * 7 + 2) * 6 * 100
    assert found["epochs"] == (5 * 7 + 2) / made.train_problems


def test_several_updates_per_step_are_counted() -> None:
    assert stage(plan(*SIZES, "stages.rl-1.loss.updates_per_step=4"), "rl-1")["optimizer_updates"] == 20


def test_refill_rounds_can_roll_out_every_group_again() -> None:
    assert stage(plan(*SIZES, "stages.rl-1.refill_rounds=2"), "rl-1")["rollouts"] == 3 * 5 * 7 * 6


def test_the_hard_filter_is_counted() -> None:
    made = plan("stages.rl-3.hard_filter.problems=10", "stages.rl-3.hard_filter.samples=3")
    assert stage(made, "rl-3")["filter_rollouts"] == 30


def test_the_hard_filter_looks_at_no_more_problems_than_there_are() -> None:
    made = plan("data.train.count=8", "stages.rl-3.hard_filter.problems=10", "stages.rl-3.hard_filter.samples=3")
    assert stage(made, "rl-3")["filter_rollouts"] == 24


def test_epochs_over_the_training_problems() -> None:
    assert stage(plan(*SIZES, "data.train.count=70"), "rl-1")["epochs"] == 0.5


def test_evaluations_follow_the_entries() -> None:
    made = plan("evaluation.problems=100", "evaluation.subset=40", "evaluation.unseen=3", "evaluation.samples=2")
    assert [(e.name, e.problems, e.unseen_problems, e.rollouts) for e in made.evaluations] == [
        ("base", 40, 0, 80),
        ("sft", 100, 6, 212),
        ("rl-1", 40, 0, 80),
        ("rl-2", 40, 0, 80),
        ("rl-3", 100, 6, 212),
        ("rl-3, tool disabled", 100, 0, 200),
    ]


def test_totals_add_up() -> None:
    made = plan()
    assert made.totals["evaluation_rollouts"] == sum(e.rollouts for e in made.evaluations)
    assert made.totals["steps"] == sum(s.steps for s in made.stages)


def test_memory_of_the_trainer_state_is_sixteen_bytes_per_parameter() -> None:
    memory = plan().memory
    assert memory is not None
    assert memory.trainer_state == 134_515_008 * 16
    assert memory.total >= memory.trainer_state + memory.engine_weights + memory.engine_kv_cache


def test_adapters_need_no_gradients_and_moments_of_the_weights_they_adapt() -> None:
    whole, adapted = plan().memory, plan("model.lora.rank=8").memory
    assert whole is not None
    assert adapted is not None
    assert adapted.trainer_state < whole.trainer_state * 0.3
    assert adapted.checkpoint_copy < whole.checkpoint_copy * 0.05


def test_the_kv_cache_is_what_a_batch_needs_or_the_limit() -> None:
    small, limited = (plan("engine.type=vllm", f"engine.max_batch={n}").memory for n in (2, 1000))
    assert small is not None
    assert limited is not None
    assert small.engine_kv_cache == 2 * 1024 * 23_040
    assert limited.engine_kv_cache == 2 * 2**30


def test_the_transformers_engine_keeps_as_much_again_of_waiting_sequences() -> None:
    full = plan("engine.max_batch=1000").memory
    assert full is not None
    assert full.engine_kv_cache == 2 * 2 * 2**30
    one_rollout = plan("stages=[]", "evaluation.problems=1", "evaluation.subset=1", "engine.max_batch=2").memory
    assert one_rollout is not None
    assert one_rollout.engine_kv_cache == (2 + 1) * 1024 * 23_040


def test_a_rollout_service_elsewhere_takes_no_memory_here() -> None:
    memory = plan("services.rollout.endpoint=grpc://other:1").memory
    assert memory is not None
    assert memory.engine_weights == memory.engine_kv_cache == 0


def test_recomputation_needs_less_memory() -> None:
    less, more = (plan(f"model.gradient_checkpointing={value}").memory for value in (True, False))
    assert less is not None
    assert more is not None
    assert less.trainer_activations < more.trainer_activations / 5


def test_a_plan_that_does_not_fit_is_warned_about() -> None:
    assert any(
        "GB are needed" in text for text in plan("engine.kv_cache_gib=100000", "engine.max_batch=9999999").warnings
    )


def test_held_out_problems_in_the_training_data_are_warned_about(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text("".join(json.dumps({"problem": f"p{n}", "answer": n}) + "\n" for n in range(8)))
    made = plan(f"data.train.path={path}", f"data.heldout.path={path}")
    assert "8 of 8 held-out problems are training problems too" in made.warnings


def test_the_quickstart_has_nothing_to_warn_about() -> None:
    assert [text for text in plan().warnings if "GB are needed" not in text] == []


def test_the_resolved_recipe_is_part_of_the_json() -> None:
    values = json.loads(json.dumps(plan("seed=9").to_json_dict()))
    assert values["recipe"]["seed"] == 9
    assert values["run_dir"] == "runs/quickstart-seed9"


@pytest.mark.parametrize("overrides", [(), ("model.source=unknown-name",), ("stages=[]",)])
def test_a_plan_can_be_printed(overrides: tuple[str, ...]) -> None:
    text = io.StringIO()
    print_plan(plan(*overrides), Console(file=text, width=150))
    assert "evaluation rollouts" in text.getvalue()
