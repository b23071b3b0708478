"""Fixtures and options that the tests of all packages share.

`--without-torch` is for environments that leave torch out on purpose: what imports torch, or something that needs it,
is then reported as skipped with that reason instead of as an error.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import pytest

_NEED_TORCH = {"accelerate", "gguf", "safetensors", "torch", "transformers"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--without-torch", action="store_true", help="skip what cannot be imported without torch")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    excinfo = report.call.excinfo if report.call else None
    if collector.config.getoption("--without-torch") and excinfo and _is_for_want_of_torch(excinfo.value):
        report.outcome, report.longrepr = "skipped", _reason(collector.path, 0)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if item.config.getoption("--without-torch") and call.excinfo and _is_for_want_of_torch(call.excinfo.value):
        report.outcome, report.longrepr = "skipped", _reason(item.path, item.location[1] or 0)
    return report


def _is_for_want_of_torch(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ModuleNotFoundError):
            return (error.name or "").partition(".")[0] in _NEED_TORCH
        error = error.__cause__
    return False


def _reason(path: Path, line: int) -> tuple[str, int, str]:
    return (str(path), line, "Skipped: needs torch; the sessions with torch run it")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of data files that are not shipped: `data` in `RSTAR_SHARED`, else in `shared` beside the checkout."""
    beside = Path(__file__).resolve().parent.parent / "shared"
    folder = Path(os.environ.get("RSTAR_SHARED", beside)) / "data"
    if not folder.is_dir():
        pytest.skip("shared data absent: set RSTAR_SHARED to the folder that holds data/")
    return folder
