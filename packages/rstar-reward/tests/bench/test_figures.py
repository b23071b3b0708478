from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

REFERENCE = "def grade(response, gold):\n    return gold in response\n"


@pytest.fixture
def grader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "substring_grader.py").write_text(REFERENCE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return "substring_grader:grade"


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rstar_reward", "bench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)


def test_figures_of_all_graders(grader: str, tmp_path: Path) -> None:
    out = tmp_path / "figures.json"
    size = ["--count", "24", "--seconds", "20", "--workers", "1"]
    result = bench("--workload", "integers", *size, "--reference", grader, "--out", str(out))
    assert result.returncode == 0, result.stderr
    figures = {figure["grader"]: figure for figure in json.loads(out.read_text())}
    assert set(figures) == {"rstar-reward", "rstar-reward, cached", "math-verify", grader}
    assert figures["rstar-reward"]["agreed"] == figures["rstar-reward"]["graded"] == 24
    assert figures["math-verify"]["graded"] == 24
    assert all(figure["cpu_seconds"] >= 0 for figure in figures.values())
    assert "x the reference" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--workload", "chess"], "--workload: 'chess'"),
        (["--workload", "integers", "--count", "2", "--reference", "no_such_module:grade"], "--reference"),
    ],
)
def test_unusable_settings_are_named(arguments: list[str], message: str) -> None:
    result = bench(*arguments)
    assert result.returncode == 2
    assert message in result.stderr
