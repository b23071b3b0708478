"""Folders of processes: kept while their maker lives, removed after any death, and nothing else is removed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rstar_protos.own_folders import make_folder, remove_stale_folders

MAKER = """
import sys
from rstar_protos.own_folders import make_folder
print(make_folder(sys.argv[1], "own-")[0], flush=True)
sys.stdin.read()
"""


def test_a_folder_is_stale_once_its_maker_was_killed(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", MAKER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as maker:
        assert maker.stdout is not None
        folder = maker.stdout.readline().strip()
        assert remove_stale_folders(str(tmp_path), "own-") == []
        maker.kill()
        maker.wait()
    Path(folder, "left").write_text("behind")
    assert remove_stale_folders(str(tmp_path), "own-") == [folder]
    assert list(tmp_path.iterdir()) == []


def test_links_other_names_and_folders_without_a_lock_are_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.mkdir()
    stale, lock = make_folder(str(tmp_path), "own-")
    os.close(lock)
    (tmp_path / "own-link").symlink_to(stale)
    (tmp_path / "own-plain").mkdir()
    (tmp_path / "own-linked-lock").mkdir()
    (tmp_path / "own-linked-lock" / ".lock").symlink_to(Path(stale, ".lock"))
    Path(stale, "inside").symlink_to(target)
    assert remove_stale_folders(str(tmp_path), "own-") == [stale]
    assert {path.name for path in tmp_path.iterdir()} == {"precious", "own-link", "own-plain", "own-linked-lock"}


def test_folders_of_others_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, lock = make_folder(str(tmp_path), "own-")
    os.close(lock)
    own = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    assert remove_stale_folders(str(tmp_path), "own-") == []
