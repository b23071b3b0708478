from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rstar_model.ledger import TokenLedger
from rstar_model.testing import write_family
from rstar_model.tokenizer import Tokenizer
from rstar_model.trajectory import Trajectory, write_trajectories
from rstar_model.types import EndReason, SpanKind


def rstar_model(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rstar_model", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


@pytest.fixture
def rollouts(tmp_path: Path, tokenizer: Tokenizer) -> Path:
    path = tmp_path / "rollouts.jsonl"
    found = []
    for number in range(3):
        ledger = TokenLedger()
        ledger.append(SpanKind.PROMPT, tokenizer.encode(f"problem {number}"))
        found.append(Trajectory(f"t-{number}", "p", "g", 0, ledger, (), EndReason.ANSWERED, 1, 0))
    write_trajectories(path, found)
    return path


def test_inspect_shows_the_lines_asked_for(rollouts: Path, tokenizer_folder: Path) -> None:
    done = rstar_model("inspect", rollouts, "--model", tokenizer_folder, "--index", 1, "--count", 2)
    assert done.returncode == 0
    assert "problem 0" not in done.stdout
    assert "problem 1" in done.stdout
    assert "problem 2" in done.stdout


def test_inspect_can_list_single_tokens(rollouts: Path, tokenizer_folder: Path, tokenizer: Tokenizer) -> None:
    done = rstar_model("inspect", rollouts, "--model", tokenizer_folder, "--table")
    assert done.returncode == 0
    assert all(str(token) in done.stdout for token in tokenizer.encode("problem 0"))


def test_template_tells_how_far_format_and_model_agree(tmp_path: Path) -> None:
    folder = write_family(tmp_path / "qwen3", "qwen3")
    done = rstar_model("template", folder, "--chat-format", "qwen3")
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    assert "are what the model's template writes" in first
    assert "drops_thinking" in second
    assert rstar_model("template", folder, "--chat-format", "llama-3").returncode == 2


def test_convert_prints_the_checksum_that_it_wrote(tmp_path: Path, model_folder: Path) -> None:
    done = rstar_model("convert", model_folder, tmp_path / "out", "--dtype", "bfloat16")
    assert done.returncode == 0, done.stderr
    manifest = json.loads((tmp_path / "out" / "rstar_weights.json").read_text())
    assert done.stdout.split()[-1] == manifest["checksum"]


def test_bad_input_is_one_line_and_exit_code_2(rollouts: Path, tokenizer_folder: Path, tmp_path: Path) -> None:
    for arguments in (
        ("fetch", "nosuch"),
        ("inspect", tmp_path / "nowhere.jsonl", "--model", tokenizer_folder),
        ("inspect", rollouts, "--model", tmp_path),
        ("inspect", rollouts, "--model", tokenizer_folder, "--index", 3),
    ):
        done = rstar_model(*arguments)
        assert done.returncode == 2, arguments
        assert done.stderr.startswith("error: ")
        assert len(done.stderr.splitlines()) == 1


def test_the_base_package_needs_no_torch() -> None:
    modules = [
        "chat_format",
        "cli",
        "fetch",
        "inspection",
        "ledger",
        "template_check",
        "tokenizer",
        "tool_calls",
        "tools",
    ]
    modules += ["trajectory", "types"]
    code = ";".join(f"import rstar_model.{name}" for name in modules)
    code += ";import sys; assert not {'torch', 'transformers', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)
