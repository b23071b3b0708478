"""Groups that bound the tasks of a slot, on a folder that stands in for a hierarchy."""

from __future__ import annotations

from pathlib import Path

import pytest

from rstar_sandbox._cgroups import TaskGroups


def test_groups_of_one_zygote_are_removed_and_others_stay(tmp_path: Path) -> None:
    ours, others = TaskGroups("rstar-sandbox-aa", tmp_path), TaskGroups("rstar-sandbox-bb", tmp_path)
    groups = [ours.make(1, 5), ours.make(2, 5), others.make(1, 5)]
    assert [(group / "pids.max").read_text() for group in groups] == ["5"] * 3
    for group in groups:
        (group / "pids.max").unlink()  # a real hierarchy does not count its own files
    ours.remove(1)
    ours.remove(1)
    assert [group.exists() for group in groups] == [False, True, True]
    ours.remove_all()
    assert [group.exists() for group in groups] == [False, False, True]


def test_a_hierarchy_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="file"):
        TaskGroups("rstar-sandbox-aa", tmp_path / "file" / "none").make(1, 5)
