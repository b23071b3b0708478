"""The measured programs: no two alike, and true about what they print."""

from __future__ import annotations

import pytest

from rstar_protos.errors import UserInputError
from rstar_sandbox import Sandbox
from rstar_sandbox.bench.programs import TIERS, Programs


@pytest.mark.parametrize("tier", TIERS)
def test_no_two_programs_are_alike(tier: str) -> None:
    programs = Programs(tier, 0)
    assert len({programs.next().code for _ in range(200)}) == 200


def test_a_seed_gives_the_same_programs_again() -> None:
    assert Programs("full", 3).next() == Programs("full", 3).next()


@pytest.mark.parametrize("tier", TIERS)
def test_programs_print_what_is_expected_of_them(sandbox: Sandbox, tier: str) -> None:
    for program in (Programs(tier, seed).next() for seed in range(5)):
        assert sandbox.run(program.code, timeout_s=60).text == program.expected


def test_an_unknown_tier_is_refused() -> None:
    with pytest.raises(UserInputError, match="--tier"):
        Programs("gpu", 0)
