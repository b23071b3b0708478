"""The command line, as a user starts it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rstar_sandbox import Sandbox

pytestmark = pytest.mark.timeout(180)


def _run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rstar_sandbox", *arguments], input=stdin, capture_output=True, text=True, timeout=120
    )


def test_exec_prints_output_and_value(sandbox: Sandbox) -> None:
    done = _run("exec", "-c", "print('out'); 2 + 3", "--endpoint", sandbox.endpoint)
    assert (done.returncode, done.stdout, done.stderr) == (0, "out\n5\n", "")


def test_exec_starts_a_service_of_its_own(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("int(input()) * 2\n")
    numbers = tmp_path / "numbers"
    numbers.write_text("21\n")
    done = _run("exec", str(program), "--stdin", str(numbers))
    assert (done.returncode, done.stdout) == (0, "42\n")


def test_exec_reads_a_program_from_standard_input(sandbox: Sandbox) -> None:
    assert _run("exec", "-", "--endpoint", sandbox.endpoint, stdin="6 * 7").stdout == "42\n"


def test_exec_of_a_failing_program_says_why_and_returns_one(sandbox: Sandbox) -> None:
    done = _run("exec", "-c", "print('x')\n1 / 0", "--endpoint", sandbox.endpoint)
    assert (done.returncode, done.stdout) == (1, "x\n")
    assert "ZeroDivisionError" in done.stderr
    assert "[error" in done.stderr


def test_exec_as_json_has_the_fields_of_a_batch(sandbox: Sandbox) -> None:
    done = _run("exec", "-c", "5", "--json", "--endpoint", sandbox.endpoint)
    assert json.loads(done.stdout)["value"] == "5"


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["exec"], "-c CODE"),
        (["exec", "no-such-file.py"], "no-such-file.py"),
        (["exec", "-c", "1", "--timeout", "-1"], "--timeout"),
        (["exec", "-c", "1", "--endpoint", "nonsense"], "nonsense"),
        (["serve", "--slots", "-2"], "--slots"),
        (["serve", "--listen", "0.0.0.0:7101"], "--listen"),
        (["serve", "--work-dir", "/no/such/folder"], "--work-dir"),
        (["batch", "no-such-file.jsonl", "out.jsonl"], "no-such-file.jsonl"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_two(arguments: list[str], named: str) -> None:
    done = _run(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert named in done.stderr
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


def test_a_port_in_use_is_refused_and_leaves_no_process(tmp_path: Path) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = _run("serve", "--listen", f"127.0.0.1:{port}", "--work-dir", str(tmp_path), "--warm", "")
    assert done.returncode == 2
    assert str(port) in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_batch_answers_each_line_once(sandbox: Sandbox, tmp_path: Path) -> None:
    programs = [
        {"id": "value", "code": "2 + 3"},
        {"id": "stdin", "code": "print(input())", "stdin": "hello"},
        {"id": "error", "code": "1 / 0"},
        {"id": "timeout", "code": "while True: pass", "timeout_s": 0.3},
        {"id": "memory", "code": "x = bytearray(10**9)", "memory_mb": 100},
        {"id": "crashed", "code": "import os; os._exit(4)"},
        {"id": 7, "code": ""},
    ]
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps(program) + "\n" for program in programs))
    done = _run("batch", str(source), str(target), "--endpoint", sandbox.endpoint)
    assert done.returncode == 0, done.stderr
    lines = {line["id"]: line for line in map(json.loads, target.read_text().splitlines())}
    statuses = {name: line["status"] for name, line in lines.items()}
    assert statuses == {
        "value": "ok",
        "stdin": "ok",
        "error": "error",
        "timeout": "timeout",
        "memory": "memory_limit",
        "crashed": "crashed",
        "7": "ok",
    }
    assert lines["value"]["value"] == "5"
    assert lines["stdin"]["stdout"] == "hello\n"
    assert lines["crashed"]["exit_code"] == 4
    assert set(lines["value"]) == {
        "id",
        "status",
        "stdout",
        "stderr",
        "value",
        "traceback",
        "exit_code",
        "signal",
        "wall_ms",
        "queue_ms",
        "stdout_bytes",
        "stdout_truncated",
        "isolation",
    }


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("nonsense", "JSON"),
        ("[]", "object"),
        ('{"id": "a"}', "code"),
        ('{"code": "1"}', "id"),
        ('{"id": "a", "code": 1}', "code"),
        ('{"id": "a", "code": "1", "timeout": 3}', "timeout"),
        ('{"id": "a", "code": "1", "timeout_s": true}', "timeout_s"),
        ('{"id": "a", "code": "1", "timeout_s": -3}', "timeout_s"),
        ('{"id": "first", "code": "1"}', "first"),
        ('{"id": 1, "code": "1", "memory_mb": 99999999999999999999}', "2: memory_mb"),
        ('{"id": 1, "code": "1", "memory_mb": -4}', "2: memory_mb: -4"),
    ],
)
def test_a_bad_line_of_a_batch_is_named(tmp_path: Path, line: str, named: str) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text('{"id": "first", "code": "1"}\n' + line + "\n")
    done = _run("batch", str(source), str(tmp_path / "out.jsonl"))
    assert done.returncode == 2
    assert "in.jsonl:2" in done.stderr
    assert named in done.stderr
