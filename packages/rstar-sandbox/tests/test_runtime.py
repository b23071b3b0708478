"""What of the machine programs may read."""

from __future__ import annotations

import os
import sys

import pytest

from rstar_sandbox.runtime import runtime_paths


def _is_below(path: str) -> bool:
    return any(path == top or path.startswith(top + os.sep) for top in runtime_paths())


def test_the_interpreter_and_its_libraries_are_in_it() -> None:
    assert all(
        map(_is_below, (sys.executable, os.path.realpath(sys.executable), os.__file__, os.path.realpath("/bin/sh")))
    )


@pytest.mark.parametrize("path", ["/", "/etc", "/etc/shadow", "/home", "/root", "/var", "/tmp", "/proc", "/sys"])
def test_folders_of_people_and_services_are_not(path: str) -> None:
    assert path not in runtime_paths()


def test_the_folder_of_the_script_is_not(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    assert not _is_below(str(tmp_path))


def test_no_path_is_below_another() -> None:
    paths = runtime_paths()
    assert not [p for p in paths for q in paths if p.startswith(q + os.sep) and not os.path.islink(q)]
