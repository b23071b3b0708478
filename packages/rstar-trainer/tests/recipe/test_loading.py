"""Recipes from names, files and overrides; every mistake is one line that names field, value and what is accepted."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar_protos.errors import UserInputError
from rstar_trainer.recipe import Recipe, built_in_recipes, load_recipe, recipe_from_mapping


def error_of(*overrides: str, recipe: str | Path = "quickstart") -> str:
    with pytest.raises(UserInputError) as caught:
        load_recipe(recipe, overrides)
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize("name", built_in_recipes())
def test_every_built_in_recipe_loads_and_carries_its_name(name: str) -> None:
    assert load_recipe(name).name == name


def test_quickstart_is_built_in() -> None:
    assert "quickstart" in built_in_recipes()


def test_unknown_recipe_lists_the_built_in_ones() -> None:
    text = error_of(recipe="no-such-recipe")
    assert "no-such-recipe" in text
    assert "quickstart" in text


def test_a_file_is_read_by_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(
        'name = "mine"\n[[stages]]\nname = "only"\nsteps = 1\nproblems_per_step = 1\ngroup_size = 2\n'
        "max_turns = 1\nmax_response_tokens = 64\nlearning_rate = 1e-5\n"
    )
    assert load_recipe(path).entries == ("base", "sft", "only")


def test_broken_toml_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "broken.toml"
    path.write_text("name = \n")
    assert "broken.toml" in error_of(recipe=path)


def test_a_file_that_is_not_text_is_an_input_error(tmp_path: Path) -> None:
    path = tmp_path / "binary.toml"
    path.write_bytes(b"\xff\xfe\x00")
    assert "binary.toml" in error_of(recipe=path)


def test_overrides_reach_nested_values_and_stages_by_position_and_name() -> None:
    recipe = load_recipe("quickstart", ["seed=7", "tool.wall_seconds=2.5", "stages.0.steps=9", "stages.rl-2.steps=8"])
    assert (recipe.seed, recipe.tool.wall_seconds) == (7, 2.5)
    assert [stage.steps for stage in recipe.stages[:2]] == [9, 8]


def test_later_overrides_win() -> None:
    assert load_recipe("quickstart", ["seed=2", "seed=3"]).seed == 3


def test_override_values_may_hold_equals_signs() -> None:
    assert load_recipe("quickstart", ["run_dir=a=b"]).run_dir == "a=b"


@pytest.mark.parametrize("text", ["123", "2026-11-30", "true", "1_0"])
def test_text_fields_take_text_that_looks_like_something_else(text: str) -> None:
    assert load_recipe("quickstart", [f"run_dir={text}"]).run_dir == text


def test_toml_values_in_overrides() -> None:
    assert load_recipe("quickstart", ["optimizer.betas=[0.8, 0.9]"]).optimizer.betas == (0.8, 0.9)


def test_none_switches_a_value_off() -> None:
    assert load_recipe("quickstart", ["model.autocast=none"]).model.autocast is None


def test_none_is_refused_where_a_value_is_needed() -> None:
    assert error_of("seed=none").startswith("seed:")


def test_a_path_replaces_the_generator_and_its_count() -> None:
    source = load_recipe("quickstart", ["data.train.path=p.jsonl"]).data.train
    assert (source.generator, source.path, source.count) == (None, Path("p.jsonl"), 0)


def test_a_path_replaces_the_families_of_the_generator(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text('name = "r"\n[data.train]\ngenerator = "quickstart"\nfamilies = ["sum"]\ncount = 9\n')
    source = load_recipe(recipe, ["data.train.path=p.jsonl"]).data.train
    assert (source.path, source.families) == (Path("p.jsonl"), ())


def test_a_count_set_beside_the_path_is_kept_in_either_order() -> None:
    for overrides in (
        ["data.train.path=p.jsonl", "data.train.count=50"],
        ["data.train.count=50", "data.train.path=p.jsonl"],
    ):
        assert load_recipe("quickstart", overrides).data.train.count == 50


def test_unknown_key_suggests_the_known_one() -> None:
    text = error_of("stages.rl-1.group_sise=4")
    assert text.startswith("stages.rl-1.group_sise:")
    assert '"group_size"' in text


def test_unknown_key_of_a_nested_section_lists_its_keys() -> None:
    assert "clip_low" in error_of("stages.rl-1.loss.zzz=1")


def test_unknown_key_inside_an_optional_section_lists_its_keys() -> None:
    assert "samples" in error_of("stages.rl-3.hard_filter.zzz=1")


def test_unknown_stage_lists_positions_and_names() -> None:
    text = error_of("stages.rl-9.steps=1")
    assert "rl-9" in text
    assert "rl-1, rl-2, rl-3" in text


def test_position_out_of_range_is_refused() -> None:
    assert "'3'" in error_of("stages.3.steps=1")


def test_a_key_below_a_plain_value_is_refused() -> None:
    assert '"seed" has no keys' in error_of("seed.x=1")


@pytest.mark.parametrize("override", ["seed", "=3", "a..b=1", ""])
def test_malformed_overrides_say_what_is_accepted(override: str) -> None:
    assert "key=value" in error_of(override)


def test_wrong_type_names_field_and_value() -> None:
    text = error_of("stages.rl-2.steps=many")
    assert text.startswith("stages.rl-2.steps: 'many'")
    assert "integer" in text


def test_several_mistakes_are_counted() -> None:
    assert "(and 1 more)" in error_of("seed=x", "tool.wall_seconds=-1")


@given(st.text(max_size=30), st.text(max_size=30))
def test_any_override_gives_a_recipe_or_a_one_line_error(key: str, value: str) -> None:
    outcome: object
    try:
        outcome = load_recipe("quickstart", [f"{key}={value}"])
    except UserInputError as error:
        outcome = str(error)
    assert isinstance(outcome, Recipe) or (isinstance(outcome, str) and "\n" not in outcome)


def test_a_recipe_survives_json() -> None:
    recipe = load_recipe("quickstart", ["model.autocast=none", "data.train.path=x.jsonl"])
    assert recipe_from_mapping(recipe.model_dump(mode="json")) == recipe
