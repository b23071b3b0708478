"""Files in and out of a working directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar_sandbox.files import (
    MAX_COLLECTED_BYTES,
    UnusablePathError,
    check_relative_path,
    collect_files,
    write_files,
)


@given(st.text(alphabet=st.sampled_from("./ab\0"), max_size=20) | st.text(max_size=20))
def test_a_path_that_is_accepted_stays_inside(path: str) -> None:
    try:
        relative = check_relative_path(path)
    except UnusablePathError:
        return
    joined = os.path.normpath(os.path.join("/root-of-it", relative))
    assert joined.startswith("/root-of-it/")


@pytest.mark.parametrize("path", ["", ".", "..", "../a", "a/../../b", "/etc/passwd", "a\0b", "./.."])
def test_paths_that_lead_out_are_refused(path: str) -> None:
    with pytest.raises(UnusablePathError):
        check_relative_path(path)


def test_what_is_written_is_collected(tmp_path: Path) -> None:
    files = {"a": b"1", "b/c/d": b"\x00\xff"}
    write_files(str(tmp_path), files, None)
    assert collect_files(str(tmp_path), list(files)) == (files, [])


def test_a_file_where_a_folder_is_needed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnusablePathError):
        write_files(str(tmp_path), {"a": b"", "a/b": b""}, None)


def test_links_folders_and_missing_files_are_left_out(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "secret").write_bytes(b"secret")
    (inside / "link").symlink_to(tmp_path / "secret")
    (inside / "hard").hardlink_to(tmp_path / "secret")
    (inside / "folder").mkdir()
    os.mkfifo(inside / "fifo")
    names = ["link", "hard", "folder", "fifo", "missing", "../secret"]
    assert collect_files(str(inside), names) == ({}, names)


def test_files_beyond_the_size_limit_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"1")
    with (tmp_path / "large").open("wb") as file:
        file.truncate(MAX_COLLECTED_BYTES + 1)
    assert collect_files(str(tmp_path), ["large", "small"]) == ({"small": b"1"}, ["large"])
