"""What the repository's distributions say of themselves."""

from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from workspace import Distribution, dependants, minimum_pins, read_workspace, siblings


def distribution(name: str, *needs: str, python: str = ">=3.10", **extras: list[str]) -> Distribution:
    return Distribution(
        name=name,
        folder=Path("packages") / name,
        requires_python=SpecifierSet(python),
        dependencies=tuple(map(Requirement, needs)),
        extras={extra: tuple(map(Requirement, listing)) for extra, listing in extras.items()},
    )


SMALL = {
    found.name: found
    for found in (
        distribution("contracts", "grpcio>=1.72"),
        distribution("engine", "contracts>=0.1", fast=["torch>=2.6"]),
        distribution("trainer", "engine[fast]>=0.1", "grpcio>=1.75", python=">=3.11"),
        distribution("verifier", "contracts>=0.1", "sympy>=1.12,<2"),
    )
}


def test_the_repository_has_seven_distributions_with_the_contracts_first() -> None:
    names = list(read_workspace())
    assert len(names) == 7
    assert names[0] == "rstar-protos"
    assert names[-1] == "rstar-trainer"


def test_python_versions_come_from_the_metadata() -> None:
    assert SMALL["trainer"].pythons == ("3.11", "3.12", "3.13")


def test_siblings_carry_the_extras_asked_of_them() -> None:
    assert siblings(SMALL, "trainer") == {
        "contracts": frozenset(),
        "engine": frozenset({"fast"}),
        "trainer": frozenset(),
    }


def test_siblings_of_a_package_without_dependants_are_its_own_needs_only() -> None:
    assert list(siblings(SMALL, "verifier")) == ["contracts", "verifier"]


def test_dependants_are_found_over_several_steps() -> None:
    assert dependants(SMALL, ["contracts"]) == ["contracts", "engine", "trainer", "verifier"]
    assert dependants(SMALL, ["engine"]) == ["engine", "trainer"]


def test_the_higher_of_two_lowest_versions_counts() -> None:
    assert minimum_pins(SMALL, "trainer") == {"grpcio": Version("1.75"), "torch": Version("2.6")}


def test_an_upper_bound_is_not_a_lowest_version() -> None:
    assert minimum_pins(SMALL, "verifier")["sympy"] == Version("1.12")


def test_a_dependency_without_a_lowest_version_is_refused() -> None:
    with pytest.raises(ValueError, match="'numpy' names no lowest version"):
        minimum_pins({"loose": distribution("loose", "numpy<3")}, "loose")


@pytest.mark.parametrize("name", list(read_workspace()))
def test_every_dependency_of_the_repository_names_its_lowest_version(name: str) -> None:
    workspace = read_workspace()
    assert minimum_pins(workspace, name, workspace[name].extras)


def test_a_dependency_for_another_python_has_no_pin() -> None:
    workspace = {"old": distribution("old", "tomli>=2.0; python_version < '3.11'")}
    assert minimum_pins(workspace, "old", python="3.10") == {"tomli": Version("2.0")}
    assert minimum_pins(workspace, "old", python="3.11") == {}
