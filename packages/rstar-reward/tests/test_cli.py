from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "rstar_reward", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)


def test_grade_writes_one_line_per_line_in_order(tmp_path: Path) -> None:
    rows = [
        {"id": "a", "gold": "4", "response": "<answer>\\boxed{4}</answer>"},
        {"id": "b", "gold": "\\sqrt{8}", "response": "\\boxed{2\\sqrt{2}}"},
        {"id": "c", "gold": "4", "response": "\u2028 none"},
        {"id": "d", "gold": "4", "response": "\\boxed{4}", "finish_reason": "length"},
        {"id": 5, "gold": "4", "turns": [{"role": "tool", "text": "\\boxed{4}"}, {"role": "assistant", "text": "ok"}]},
        {"id": "f", "gold": "Paris", "response": "<answer>paris</answer>", "verifier": "exact"},
        {"id": "g", "gold": 4, "response": "\\boxed{4}"},
    ]
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n", encoding="utf-8")
    result = run("grade", str(source), str(target))
    assert result.returncode == 0, result.stderr
    graded = [json.loads(line) for line in target.read_text("utf-8").split("\n") if line]
    assert [row["id"] for row in graded] == ["a", "b", "c", "d", 5, "f", "g"]
    assert [row["reward"] for row in graded] == [1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0]
    assert set(graded[0]) == {"id", "reward", "status", "reason", "extracted"}


def test_half_a_character_in_a_response_is_graded_and_written_escaped(tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text('{"id": "\\ud800", "gold": "4", "response": "\\\\boxed{\\ud800}"}\n', encoding="utf-8")
    assert run("grade", str(source), str(target)).returncode == 0
    assert json.loads(target.read_text("utf-8"))["reward"] == 0.0


def test_the_file_that_is_read_is_not_written_over(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"id": 1, "gold": "4", "response": "x"}\n', encoding="utf-8")
    result = run("grade", str(source), str(source))
    assert result.returncode == 2
    assert "OUT.jsonl" in result.stderr
    assert json.loads(source.read_text("utf-8"))["response"] == "x"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("nonsense", "in.jsonl:1: "),
        ('{"id": 1, "gold": "4", "response": "x"}\n{"gold": "2"}', "2: `id` is missing"),
        ('{"id": 1, "gold": 4.5, "response": "x"}', "1: gold: 4.5 is not usable; accepted: a string or a whole number"),
        ('{"id": 1, "gold": "4", "resp": "x"}', "1: a line needs one of response, segments, turns; none is given"),
        ('{"id": 1, "gold": "4", "response": "x", "turns": []}', "response and turns are given"),
        ('{"id": 1, "gold": "4", "response": 4}', "1: response: 4 is not usable; accepted: a string"),
        ('{"id": 1, "gold": "4", "turns": [1]}', "1: turns.0.kind"),
        ('{"id": 1, "gold": "4", "response": "x", "end_reason": "asleep"}', "end_reason"),
        ('{"id": 1, "gold": "4", "response": "x", "verifier": "chess"}', "verifier"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(tmp_path: Path, content: str, message: str) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text(content, encoding="utf-8")
    result = run("grade", str(source), str(tmp_path / "out.jsonl"))
    assert result.returncode == 2
    assert result.stderr.startswith("error: ")
    assert message in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    result = run("grade", str(tmp_path / "none.jsonl"), str(tmp_path / "out.jsonl"))
    assert result.returncode == 2
    assert "none.jsonl" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [("--listen", "0.0.0.0:0"), ("--listen", "nowhere"), ("--workers", "0"), ("--token-file", "/does/not/exist")],
)
def test_serve_refuses_unusable_settings(arguments: tuple[str, ...]) -> None:
    result = run("serve", *arguments)
    assert result.returncode == 2
    assert result.stderr.startswith("error: ")


def test_help_names_the_commands() -> None:
    result = run("--help")
    assert result.returncode == 0
    assert "serve" in result.stdout
    assert "grade" in result.stdout
