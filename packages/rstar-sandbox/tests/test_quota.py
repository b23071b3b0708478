"""Emptying folders and bounding them."""

from __future__ import annotations

import os
from pathlib import Path

from rstar_sandbox.quota import empty_folder, exceeds, remove_of_user, reset_folder


def test_a_folder_is_emptied_whatever_its_rights_are(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (inner / "file").write_text("x")
    inner.chmod(0)
    inner.parent.chmod(0)
    empty_folder(str(tmp_path), frozenset())
    assert os.listdir(tmp_path) == []


def test_links_are_removed_and_not_followed(tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    (outside / "file").write_text("x")
    (inside / "link").symlink_to(outside)
    empty_folder(str(inside), frozenset())
    assert os.listdir(inside) == []
    assert (outside / "file").exists()


def test_what_is_kept_stays(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "other").mkdir()
    empty_folder(str(tmp_path), frozenset({"kept"}))
    assert os.listdir(tmp_path) == ["kept"]


def test_bytes_and_files_are_bounded_together(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_bytes(b"x" * 100_000)
    assert not exceeds(str(tmp_path), 1_000_000, 2)
    assert exceeds(str(tmp_path), 50_000, 2)
    assert exceeds(str(tmp_path), 1_000_000, 1)


def test_rights_and_times_of_a_folder_are_reset(tmp_path: Path) -> None:
    os.utime(tmp_path, (7, 7))
    tmp_path.chmod(0o1711)
    reset_folder(str(tmp_path))
    found = tmp_path.stat()
    assert (found.st_mode & 0o7777, found.st_mtime) == (0o700, 0)


def test_only_a_users_own_files_are_removed(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "folder").mkdir()
    remove_of_user(str(tmp_path), os.getuid() + 1)
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]
    remove_of_user(str(tmp_path), os.getuid())
    assert os.listdir(tmp_path) == ["folder"]
