"""Splits are disjoint for all seeds and counts, deterministic, balanced; what is unseen stays out of training."""

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rstar_protos.errors import UserInputError
from rstar_trainer.problems import FAMILIES, SPLITS, family_named, generate, split_of

# No deadline: first draws import and hash much, on machines that are busy.
FEW = settings(max_examples=20, deadline=None)

SEEDS = st.integers(0, 2**32)
COUNTS = st.integers(0, 60)


@FEW
@given(seeds=st.tuples(SEEDS, SEEDS, SEEDS), count=COUNTS)
def test_no_problem_is_in_two_splits(seeds, count):
    found = [{p.problem_id for p in generate(split, count, seed)} for split, seed in zip(SPLITS, seeds, strict=True)]
    assert not found[0] & found[1]
    assert not found[0] & found[2]
    assert not found[1] & found[2]


@FEW
@given(seed=SEEDS, count=COUNTS, split=st.sampled_from(SPLITS))
def test_problems_of_a_split_are_distinct_and_belong_to_it(seed, count, split):
    problems = generate(split, count, seed)
    assert len({p.problem_id for p in problems}) == len(problems) == count
    assert all(split_of(p.family, dict(p.parameters)) == split == p.split for p in problems)


@FEW
@given(seed=SEEDS, split=st.sampled_from(SPLITS))
def test_training_and_the_plain_held_out_split_hold_nothing_unseen(seed, split):
    for problem in generate(split, 40, seed):
        family = family_named(problem.family)
        assert not family.unseen
        assert problem.wording not in family.unseen_wordings


@FEW
@given(seed=SEEDS)
def test_unseen_tags_hold_only_what_is_unseen(seed):
    for problem in generate("heldout", 20, seed, tag="unseen_family"):
        assert family_named(problem.family).unseen
        assert "unseen_family" in problem.tags
    for problem in generate("heldout", 20, seed, tag="unseen_wording"):
        assert problem.wording in family_named(problem.family).unseen_wordings
        assert "unseen_wording" in problem.tags


@FEW
@given(seed=SEEDS, count=COUNTS)
def test_families_are_balanced_in_every_prefix(seed, count):
    families = [p.family for p in generate("train", count, seed)]
    seen = [f.name for f in FAMILIES if not f.unseen]
    assert max(families.count(f) for f in seen) - min(families.count(f) for f in seen) <= 1


@FEW
@given(seed=SEEDS)
def test_the_answer_is_a_decimal_integer(seed):
    assert all(str(int(p.answer)) == p.answer for p in generate("heldout", 30, seed))


def test_equal_seeds_give_equal_problems_in_another_process():
    program = "from rstar_trainer.problems import generate; print(generate('train', 20, 5))"
    other = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": "77"}
    )
    assert other.stdout.strip() == repr(generate("train", 20, 5))


def test_other_seeds_give_other_problems():
    assert generate("train", 20, 1) != generate("train", 20, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"split": "test", "count": 1, "seed": 0}, "split.*train"),
        ({"split": "train", "count": -1, "seed": 0}, "count"),
        ({"split": "train", "count": 1, "seed": 0, "tag": "odd"}, "tag.*unseen_family"),
        ({"split": "train", "count": 1, "seed": 0, "tag": "unseen_family"}, "split.*heldout"),
        ({"split": "sft", "count": 1, "seed": 0, "families": ["tickets"]}, "families"),
        ({"split": "sft", "count": 1, "seed": 0, "families": ["sudoku"]}, "family.*sudoku"),
        ({"split": "heldout", "count": 10**6, "seed": 0, "families": ["counting"]}, "counting"),
    ],
)
def test_bad_input_names_the_field(arguments, message):
    with pytest.raises(UserInputError, match=message):
        generate(**arguments)
