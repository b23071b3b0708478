"""Fixtures and options that the tests of all packages share.

`--without-torch` is for environments that leave torch out on purpose: a test file that imports torch, or
something that needs it, is then reported as skipped with that reason instead of as an error.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import pytest

_NEED_TORCH = {"accelerate", "gguf", "safetensors", "torch", "transformers"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--without-torch", action="store_true", help="skip test files that cannot be imported without torch"
    )


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if not (collector.config.getoption("--without-torch") and report.failed):
        return report
    error = report.call.excinfo.value if report.call and report.call.excinfo else None
    while error is not None and not isinstance(error, ModuleNotFoundError):
        error = error.__cause__
    if error is not None and (error.name or "").partition(".")[0] in _NEED_TORCH:
        report.outcome = "skipped"
        report.longrepr = (str(collector.path), 0, "needs torch; the sessions with torch run it")
    return report


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of data files that are not shipped: `data` in `RSTAR_SHARED`, else in `shared` beside the checkout."""
    beside = Path(__file__).resolve().parent.parent / "shared"
    folder = Path(os.environ.get("RSTAR_SHARED", beside)) / "data"
    if not folder.is_dir():
        pytest.skip("shared data absent: set RSTAR_SHARED to the folder that holds data/")
    return folder
