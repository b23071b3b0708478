"""Checks that need several sections, and what a recipe derives from its values."""

import pytest
from pydantic import BaseModel, ValidationError

from rstar_protos.errors import UserInputError
from rstar_trainer.recipe import Recipe, load_recipe


def refused(*overrides: str) -> str:
    with pytest.raises(UserInputError) as caught:
        load_recipe("quickstart", overrides)
    return str(caught.value)


def test_a_recipe_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        load_recipe().seed = 2  # type: ignore[misc]


def sections(model: type[BaseModel]) -> list[type[BaseModel]]:
    found = [model]
    for field in model.model_fields.values():
        for part in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(part, type) and issubclass(part, BaseModel):
                found += sections(part)
    return found


@pytest.mark.parametrize("section", sections(Recipe), ids=lambda section: section.__name__)
def test_every_field_says_what_it_is(section: type[BaseModel]) -> None:
    assert [name for name, field in section.model_fields.items() if not field.description] == []


def test_run_path_holds_name_and_seed() -> None:
    assert str(load_recipe("quickstart", ["seed=3"]).run_path) == "runs/quickstart-seed3"


def test_entries_follow_the_stages() -> None:
    assert load_recipe().entries == ("base", "sft", "rl-1", "rl-2", "rl-3")


def test_without_sft_there_is_no_sft_entry() -> None:
    assert load_recipe("quickstart", ["sft.enabled=false"]).entries == ("base", "rl-1", "rl-2", "rl-3")


def test_sft_and_the_last_stage_are_evaluated_in_full() -> None:
    recipe = load_recipe()
    assert [entry for entry in recipe.entries if recipe.is_full_evaluation(entry)] == ["sft", "rl-3"]


def test_full_and_subset_evaluations_take_their_counts() -> None:
    recipe = load_recipe("quickstart", ["evaluation.problems=100", "evaluation.subset=40"])
    assert (recipe.evaluation_problems("sft"), recipe.evaluation_problems("rl-1")) == (100, 40)


def test_the_quickstart_evaluates_enough_problems_for_its_claim() -> None:
    recipe = load_recipe()
    assert recipe.evaluation_problems("sft") >= 128
    assert recipe.evaluation_problems("rl-3") >= 128


def test_stage_names_differ() -> None:
    assert '"rl-1" twice' in refused("stages.rl-2.name=rl-1")


def test_unknown_full_entry_is_refused_by_name() -> None:
    assert '"rl-7"' in refused('evaluation.full=["rl-7"]')


def test_nothing_to_do_is_refused() -> None:
    assert "sft.enabled" in refused("stages=[]", "sft.enabled=false")


def test_sft_alone_is_a_recipe() -> None:
    assert load_recipe("quickstart", ["stages=[]"]).entries == ("base", "sft")


@pytest.mark.parametrize("field", ["stages.rl-2", "evaluation"])
def test_a_response_leaves_room_for_the_prompt(field: str) -> None:
    text = refused(f"{field}.max_response_tokens=1024")
    assert text.startswith(f"{field}.max_response_tokens")
    assert "engine.max_model_len" in text


def test_a_step_needs_no_more_problems_than_there_are() -> None:
    assert "data.train.count (5)" in refused("data.train.count=5")


def test_an_evaluation_needs_no_more_problems_than_there_are() -> None:
    assert "data.heldout.count (100)" in refused("data.heldout.count=100")


def test_adapters_are_for_one_process() -> None:
    assert "learner.backend" in refused("learner.backend=deepspeed", "model.lora.rank=8")


def test_dr_grpo_and_its_divisor_come_together() -> None:
    assert "constant_tokens" in refused("stages.rl-1.loss.aggregation=dr_grpo")
    assert "constant_tokens" in refused("stages.rl-1.loss.constant_tokens=100")
    settings = ["stages.rl-1.loss.aggregation=dr_grpo", "stages.rl-1.loss.constant_tokens=192"]
    assert load_recipe("quickstart", settings).stages[0].loss.constant_tokens == 192


def test_the_paper_s_objective_is_the_default() -> None:
    loss = load_recipe().stages[0].loss
    assert (loss.aggregation, loss.advantage, loss.clip_low, loss.clip_high) == ("group_token_mean", "std", 0.2, 0.28)
    assert (loss.updates_per_step, loss.engine_ratio_cap) == (1, None)
