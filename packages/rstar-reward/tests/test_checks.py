"""The long checks of `checks/`, kept short: they run and find nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

CHECKS = Path(__file__).resolve().parents[1] / "checks"

pytestmark = pytest.mark.heavy


def check(name: str, *arguments: str) -> dict[str, object]:
    command = [sys.executable, str(CHECKS / name), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-2000:]
    report: dict[str, object] = json.loads(result.stdout)
    return report


def test_a_service_under_mixed_load_answers_all_and_keeps_its_size() -> None:
    # How long a verdict takes depends on who else uses the machine.
    assert check("soak.py", "--requests", "200", "--max-seconds", "600")["answered"] == 200


def test_some_seconds_of_fuzzing_find_nothing() -> None:
    assert check("fuzz.py", "--cpu-seconds", "15")["findings"] == []
