"""When a shared environment is installed again."""

import sys

import pytest
from environment import InterpreterNotFoundError, find_interpreter, fingerprint
from workspace import ROOT

VERSION = "{}.{}".format(*sys.version_info[:2])
FILES = [ROOT / "pyproject.toml", ROOT / "noxfile.py"]


def test_the_running_interpreter_serves_its_own_version() -> None:
    assert find_interpreter(VERSION) == sys.executable


def test_a_version_that_is_not_installed_is_named() -> None:
    with pytest.raises(InterpreterNotFoundError, match=r"Python 3\.1 is not installed"):
        find_interpreter("3.1")


def test_the_order_of_files_does_not_count() -> None:
    assert fingerprint(["a"], FILES) == fingerprint(["a"], FILES[::-1])


def test_requirements_and_files_count() -> None:
    assert len({fingerprint(["a"], FILES), fingerprint(["b"], FILES), fingerprint(["a"], FILES[:1])}) == 3
