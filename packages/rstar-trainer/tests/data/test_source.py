"""The problems that recipes name."""

import json
from pathlib import Path

import pytest

from rstar_protos.errors import UserInputError
from rstar_trainer.data import integer_answer, load_heldout_problems, load_training_problems
from rstar_trainer.problems import TAGS
from rstar_trainer.recipe import load_recipe

SMALL = ["data.train.count=40"]


def lines(path: Path, answers: list[str]) -> Path:
    rows = [{"problem": f"problem {number}", "answer": answer} for number, answer in enumerate(answers)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_generated_training_problems_have_integer_answers() -> None:
    found = load_training_problems(load_recipe("quickstart", SMALL))
    assert len(found) == 40
    assert all(integer_answer(problem.answer) == problem.answer for problem in found)


def test_training_problems_depend_on_the_seed_and_held_out_ones_do_not() -> None:
    one, two = (load_recipe("quickstart", [*SMALL, f"seed={seed}"]) for seed in (1, 2))
    assert load_training_problems(one) != load_training_problems(two)
    assert load_heldout_problems(one) == load_heldout_problems(two)


def test_training_and_held_out_problems_share_none() -> None:
    recipe = load_recipe()
    heldout = load_heldout_problems(recipe)
    measured = {p.text for p in heldout.problems} | {p.text for part in heldout.unseen.values() for p in part}
    assert measured.isdisjoint({problem.text for problem in load_training_problems(recipe)})


def test_a_subset_is_a_prefix_of_the_full_set() -> None:
    few = load_heldout_problems(load_recipe("quickstart", ["evaluation.problems=20", "evaluation.subset=20"])).problems
    assert few == load_heldout_problems(load_recipe()).problems[:20]


def test_unseen_kinds_come_apart_with_their_tags() -> None:
    unseen = load_heldout_problems(load_recipe("quickstart", ["evaluation.unseen=5"])).unseen
    assert set(unseen) == set(TAGS)
    assert all(len(part) == 5 and tag in part[0].tags for tag, part in unseen.items())


def test_unseen_kinds_can_be_left_out() -> None:
    assert load_heldout_problems(load_recipe("quickstart", ["evaluation.unseen=0"])).unseen == {}


def test_families_restrict_the_generator() -> None:
    family = load_training_problems(load_recipe("quickstart", SMALL))[0].tags[0]
    found = load_training_problems(load_recipe("quickstart", [*SMALL, f'data.train.families=["{family}"]']))
    assert {problem.tags[0] for problem in found} == {family}


def test_an_unknown_generator_names_the_known_ones() -> None:
    recipe = load_recipe("quickstart", ["data.train.generator=riddles", "data.train.count=100"])
    with pytest.raises(UserInputError, match=r"data\.train\.generator.*quickstart"):
        load_training_problems(recipe)


def test_problems_come_from_a_file(tmp_path: Path) -> None:
    path = lines(tmp_path / "p.jsonl", [str(number) for number in range(12)])
    recipe = load_recipe("quickstart", [f"data.train.path={path}", "data.train.count=9"])
    assert [problem.answer for problem in load_training_problems(recipe)] == [str(number) for number in range(9)]


def test_a_non_integer_answer_is_an_error_with_its_line(tmp_path: Path) -> None:
    path = lines(tmp_path / "p.jsonl", ["1", "0.5", "3", "4", "5", "6"])
    recipe = load_recipe("quickstart", [f"data.train.path={path}"])
    with pytest.raises(UserInputError, match=r"p\.jsonl:2: '0\.5'"):
        load_training_problems(recipe)


def test_other_answers_are_fine_where_any_is_asked_for(tmp_path: Path) -> None:
    path = lines(tmp_path / "p.jsonl", ["1", "0.5", *"3456789"])
    recipe = load_recipe("quickstart", [f"data.train.path={path}", "data.train.answers=any"])
    assert load_training_problems(recipe)[1].answer == "0.5"


def test_a_file_with_too_few_problems_for_a_step_is_refused(tmp_path: Path) -> None:
    recipe = load_recipe("quickstart", [f"data.train.path={lines(tmp_path / 'p.jsonl', ['1', '2'])}"])
    with pytest.raises(UserInputError, match="at most the 2 training problems"):
        load_training_problems(recipe)
