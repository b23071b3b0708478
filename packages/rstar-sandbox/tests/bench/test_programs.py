"""The measured programs: no two alike, and true about what they print."""

from __future__ import annotations

import pytest

from rstar_protos.errors import UserInputError
from rstar_sandbox import Sandbox
from rstar_sandbox.bench.programs import TIERS, Programs
from rstar_sandbox.settings import SandboxSettings
from rstar_sandbox.tiers import tier_of_source


@pytest.mark.parametrize("tier", TIERS)
def test_no_two_programs_are_alike(tier: str) -> None:
    programs = Programs(tier, 0)
    assert len({programs.next().code for _ in range(200)}) == 200


def test_a_seed_gives_the_same_programs_again() -> None:
    assert Programs("full", 3).next() == Programs("full", 3).next()


@pytest.mark.parametrize("tier", TIERS)
def test_programs_print_what_is_expected_of_them(sandbox: Sandbox, tier: str) -> None:
    for program in (Programs(tier, seed).next() for seed in range(5 if tier == "standard" else 2)):
        assert sandbox.run(program.code, timeout_s=60).text == program.expected


@pytest.mark.parametrize("tier", TIERS)
def test_programs_run_in_the_tier_that_they_are_named_for(tier: str) -> None:
    assert tier_of_source(Programs(tier, 0).next().code, SandboxSettings().warm) == tier


def test_an_unknown_tier_is_refused() -> None:
    with pytest.raises(UserInputError, match="--tier"):
        Programs("gpu", 0)
