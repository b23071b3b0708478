"""The distributions of this repository, as their own pyproject.toml files describe them.

Every other tool asks here: which distributions there are, which Python versions each supports, what
each needs from its siblings, and what the lowest versions are that it says it works with.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import tomllib
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.10", "3.11", "3.12", "3.13")


@dataclass(frozen=True)
class Distribution:
    """One distribution: where it lies and what its metadata says."""

    name: str
    folder: Path
    requires_python: SpecifierSet
    dependencies: tuple[Requirement, ...]
    extras: Mapping[str, tuple[Requirement, ...]] = field(default_factory=dict)
    scripts: tuple[str, ...] = ()

    @property
    def import_name(self) -> str:
        """Name of the package in an import statement."""
        return self.name.replace("-", "_")

    @property
    def pythons(self) -> tuple[str, ...]:
        """Versions out of `PYTHONS` that the metadata admits."""
        return tuple(version for version in PYTHONS if f"{version}.0" in self.requires_python)

    @property
    def tests(self) -> Path:
        """Folder of the tests."""
        return self.folder / "tests"

    def requirements(self, extras: Iterable[str] = ()) -> tuple[Requirement, ...]:
        """Direct requirements, with those of the named extras."""
        chosen = [requirement for extra in extras for requirement in self.extras[extra]]
        return (*self.dependencies, *chosen)


def read_distribution(pyproject: Path) -> Distribution:
    """Read one pyproject.toml."""
    project = tomllib.loads(pyproject.read_text(encoding="utf-8"))["project"]
    return Distribution(
        name=project["name"],
        folder=pyproject.parent,
        requires_python=SpecifierSet(project["requires-python"]),
        dependencies=tuple(map(Requirement, project.get("dependencies", []))),
        extras={
            extra: tuple(map(Requirement, requirements))
            for extra, requirements in project.get("optional-dependencies", {}).items()
        },
        scripts=tuple(project.get("scripts", {})),
    )


def read_workspace(root: Path = ROOT) -> dict[str, Distribution]:
    """All distributions by name, each after those that it needs without extras."""
    paths = [root / "protos" / "pyproject.toml", *sorted((root / "packages").glob("*/pyproject.toml"))]
    unordered = {found.name: found for found in map(read_distribution, paths)}
    ordered: dict[str, Distribution] = {}
    while len(ordered) < len(unordered):
        ready = [
            found
            for found in unordered.values()
            if found.name not in ordered
            and all(need.name in ordered for need in found.dependencies if need.name in unordered)
        ]
        if not ready:
            raise ValueError(f"distributions need each other in a circle: {set(unordered) - set(ordered)}")
        ordered |= {found.name: found for found in ready}
    return ordered


def siblings(workspace: Mapping[str, Distribution], name: str, extras: Iterable[str] = ()) -> dict[str, frozenset[str]]:
    """The distribution itself and every sibling it needs, each with the extras that are asked of it."""
    wanted: dict[str, frozenset[str]] = {}
    pending = [(name, frozenset(extras))]
    while pending:
        current, asked = pending.pop()
        if current in wanted and asked <= wanted[current]:
            continue
        asked = asked | wanted.get(current, frozenset())
        wanted[current] = asked
        pending += [
            (need.name, frozenset(need.extras))
            for need in workspace[current].requirements(asked)
            if need.name in workspace
        ]
    return {found: wanted[found] for found in workspace if found in wanted}


def dependants(workspace: Mapping[str, Distribution], names: Iterable[str]) -> list[str]:
    """The named distributions and all that need one of them, with any extra, directly or not."""
    reached = set(names)
    while True:
        more = {
            found.name
            for found in workspace.values()
            if any(need.name in reached for need in found.requirements(found.extras))
        }
        if more <= reached:
            return [name for name in workspace if name in reached]
        reached |= more


def minimum_pins(
    workspace: Mapping[str, Distribution], name: str, extras: Iterable[str] = (), python: str = PYTHONS[0]
) -> dict[str, Version]:
    """Lowest version of each direct third-party dependency of a distribution and of its siblings.

    Dependencies whose marker excludes the Python version are left out. Where two distributions name a different
    lowest version of the same dependency, the higher one counts: nothing below it satisfies both.

    Raises:
        ValueError: a dependency names no lowest version.
    """
    pins: dict[str, Version] = {}
    for sibling, asked in siblings(workspace, name, extras).items():
        for need in workspace[sibling].requirements(asked):
            marker = {"python_version": python, "python_full_version": f"{python}.0"}
            if need.name in workspace or (need.marker and not need.marker.evaluate(marker)):
                continue
            lowest = [Version(part.version) for part in need.specifier if part.operator in {">=", "==", "~="}]
            if not lowest:
                raise ValueError(f"{sibling}: dependency {need.name!r} names no lowest version; give it a >=")
            pins[need.name] = max(lowest[0], pins.get(need.name, lowest[0]))
    return pins
