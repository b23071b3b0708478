"""Answers are right by a brute-force computation, and every code template prints them."""

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rstar_protos.errors import UserInputError
from rstar_trainer.problems import FAMILIES, family_named, run_trusted

# No deadline: first draws import and hash much, on machines that are busy.
FEW = settings(max_examples=20, deadline=None)

BRUTE_FORCE = {
    "sum": lambda p: sum((p["a"], p["b"])),
    "product": lambda p: sum(p["a"] for _ in range(p["b"])),
    "boxes": lambda p: sum(p["b"] for _ in range(p["a"])) + p["c"],
    "spending": lambda p: p["a"] - sum(p["c"] for _ in range(p["b"])),
    "leftover": lambda p: len(range(p["a"])[p["a"] // p["b"] * p["b"] :]),
    "multiples": lambda p: sum(i for i in range(1, p["n"] + 1) if i % p["k"] == 0),
    "digits": lambda p: sum(int(d) for d in str(p["n"])),
    "counting": lambda p: len([i for i in range(1, p["n"] + 1) if i % p["a"] == 0 and i % p["b"] != 0]),
    "power": lambda p: p["a"] ** p["b"] % p["m"],
    "tickets": lambda p: sum([p["b"]] * p["a"]) + sum([p["d"]] * p["c"]),
}


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
@FEW
@given(seed=st.integers(0, 10**9))
def test_the_answer_equals_a_brute_force_computation(family, seed):
    parameters = family.sample(random.Random(seed))
    assert family.solve(parameters) == BRUTE_FORCE[family.name](parameters)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
@FEW
@given(seed=st.integers(0, 10**9))
def test_every_code_template_gives_the_answer(family, seed):
    parameters = family.sample(random.Random(seed))
    for style in range(len(family.codes)):
        assert run_trusted(family.code(style, parameters)).strip() == str(family.solve(parameters))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
@FEW
@given(seed=st.integers(0, 10**9))
def test_every_wording_states_every_parameter(family, seed):
    rng = random.Random(seed)
    parameters = family.sample(rng)
    for wording in range(len(family.wordings)):
        text = family.text(wording, parameters, rng)
        assert {str(v) for v in parameters.values()} <= set(re.findall(r"\d+", text))
        assert "\n" not in text


def test_answers_are_spread_so_that_guessing_does_not_pay():
    rng = random.Random(0)
    for family in FAMILIES:
        answers = [family.solve(family.sample(rng)) for _ in range(400)]
        assert max(answers.count(a) for a in set(answers)) <= 40, family.name


def test_one_family_and_one_wording_are_kept_from_training():
    assert sum(f.unseen for f in FAMILIES) == 1
    assert sum(len(f.unseen_wordings) for f in FAMILIES if not f.unseen) == 1


def test_an_unknown_family_is_named_with_the_known_ones():
    with pytest.raises(UserInputError, match=r"sudoku.*digits"):
        family_named("sudoku")
