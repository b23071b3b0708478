"""Groups that bound the memory and tasks of a slot, on folders that stand in for a hierarchy."""

from __future__ import annotations

from pathlib import Path

import pytest

from rstar_sandbox._cgroups import ControlGroups


@pytest.fixture
def parents(tmp_path: Path) -> dict[str, Path]:
    found = {name: tmp_path / name for name in ("memory", "pids")}
    for folder in found.values():
        folder.mkdir()
    return found


def test_groups_of_one_zygote_are_removed_and_others_stay(parents: dict[str, Path]) -> None:
    ours, others = ControlGroups("rstar-sandbox-aa", parents), ControlGroups("rstar-sandbox-bb", parents)
    made = [ours.make(1, 5), ours.make(2, 5), others.make(1, 5)]
    assert [(groups["pids"] / "pids.max").read_text() for groups in made] == ["5"] * 3
    for groups in made:
        (groups["pids"] / "pids.max").unlink()  # a real hierarchy does not count its own files
    ours.remove(1)
    ours.remove(1)
    assert [groups["memory"].exists() for groups in made] == [False, True, True]
    ours.remove_all()
    assert [groups["pids"].exists() for groups in made] == [False, False, True]


def test_a_missing_controller_is_named(parents: dict[str, Path]) -> None:
    with pytest.raises(OSError, match="memory"):
        ControlGroups("rstar-sandbox-aa", {"pids": parents["pids"]}).make(1, 5)


def test_a_hierarchy_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    parents = {name: tmp_path / "none" / name for name in ("memory", "pids")}
    with pytest.raises(OSError, match="none"):
        ControlGroups("rstar-sandbox-aa", parents).make(1, 5)
