"""TRL trains with the reward function."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CHECKS = Path(__file__).resolve().parents[2] / "checks"


@pytest.mark.heavy
def test_trl_trains_with_it_and_the_reward_rises() -> None:
    command = [sys.executable, str(CHECKS / "trl_grpo.py")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
