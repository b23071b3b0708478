"""The command line as a user meets it: real processes, the tiny model, one-line errors."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rstar_model.tools import PYTHON_TOOL
from rstar_model.trajectory import read_trajectories
from rstar_model.types import EndReason, SpanKind

needs_sandbox = pytest.mark.skipif(
    importlib.util.find_spec("rstar_sandbox") is None, reason="rstar-sandbox is not installed"
)


def cli(*arguments: object, stdin: str = "", timeout: float = 300, path: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rstar_rollout", *map(str, arguments)],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [path, os.environ.get("PYTHONPATH")]))},
    )


@pytest.fixture
def adder(tmp_path: Path) -> str:
    """A folder with an installed package that registers a tool."""
    folder = tmp_path / "site"
    (folder / "adder-1.dist-info").mkdir(parents=True)
    (folder / "adder-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: adder\nVersion: 1\n")
    (folder / "adder-1.dist-info" / "entry_points.txt").write_text("[rstar_rollout.tools]\nadder = adder:make\n")
    (folder / "adder.py").write_text(
        "from rstar_model.tools import ToolSpec\n"
        "from rstar_rollout.tools import FunctionTool\n"
        "async def add(a, b): return str(a + b)\n"
        "SCHEMA = {'type': 'object', 'properties': {'a': {'type': 'integer'}, 'b': {'type': 'integer'}}}\n"
        "def make(context): return FunctionTool(ToolSpec('adder', 'Adds two numbers.', SCHEMA), add)\n"
    )
    return str(folder)


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    path = tmp_path / "problems.jsonl"
    path.write_text('{"problem_id": "a", "problem": "1+1?"}\n\n{"problem": "2+2?", "answer": 4}\n')
    return path


def test_generate_writes_one_line_per_rollout_and_repeats_itself(tiny_model: Path, problems: Path, tmp_path: Path):
    options = ("--sandbox", "none", "--samples", 2, "--max-response-tokens", 20, "--threads", 1, "--seed", 5)
    texts = []
    for name in ("one", "two"):
        out = tmp_path / f"{name}.jsonl"
        done = cli("generate", "--model", tiny_model, "--problems", problems, "--out", out, *options)
        assert done.returncode == 0, done.stderr
        assert "4/4 rollouts" in done.stderr
        trajectories = list(read_trajectories(out))
        assert sorted(t.trajectory_id for t in trajectories) == ["a/0", "a/1", "problems-3/0", "problems-3/1"]
        texts.append(sorted((t.trajectory_id, t.ledger.token_ids, t.policy_text) for t in trajectories))
    assert texts[0] == texts[1]


@needs_sandbox
def test_generate_with_an_embedded_sandbox(tiny_model: Path, problems: Path, tmp_path: Path):
    out = tmp_path / "out.jsonl"
    done = cli(
        *("generate", "--model", tiny_model, "--problems", problems, "--out", out),
        *("--max-response-tokens", 10, "--threads", 1),
    )
    assert done.returncode == 0, done.stderr
    ends = {t.end_reason for t in read_trajectories(out)}
    assert ends <= {EndReason.ANSWERED, EndReason.TRUNCATED}


def test_generate_offers_the_tools_that_are_named(tiny_model: Path, problems: Path, tmp_path: Path, adder: str):
    out = tmp_path / "out.jsonl"
    done = cli(
        *("generate", "--model", tiny_model, "--problems", problems, "--out", out, "--sandbox", "none"),
        *("--tool", "adder", "--max-response-tokens", 5, "--threads", 1),
        path=adder,
    )
    assert done.returncode == 0, done.stderr
    for trajectory in read_trajectories(out):
        prompt = "".join(segment.text for segment in trajectory.segments if segment.kind is SpanKind.PROMPT)
        assert "Adds two numbers." in prompt
        assert PYTHON_TOOL.name not in prompt


@pytest.mark.parametrize("command", ["generate", "chat"])
@pytest.mark.parametrize(("tool", "words"), [("adder", "one of python"), ("python", "SandboxService")])
def test_tool_that_cannot_be_had_is_a_one_line_error(
    tiny_model: Path, problems: Path, tmp_path: Path, command: str, tool: str, words: str
):
    files = ("--problems", problems, "--out", tmp_path / "o") if command == "generate" else ()
    done = cli(command, "--model", tiny_model, *files, "--sandbox", "none", "--tool", tool)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert words in done.stderr


def test_chat_answers_piped_lines(tiny_model: Path):
    done = cli(
        *("chat", "--model", tiny_model, "--sandbox", "none", "--max-new-tokens", 8, "--threads", 1),
        stdin="hello\nand again\n",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("policy> ") == 2


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("not json\n", "bad.jsonl:1:"),
        ('{"problem": "x"}\n[1]\n', "bad.jsonl:2:"),
        ('{"problem": ""}\n', "bad.jsonl:1:"),
        ('{"id": 1, "problem": "x"}\n{"id": 1, "problem": "y"}\n', "bad.jsonl:2:"),
        ("\n", "problem"),
    ],
)
def test_bad_problem_file_is_a_one_line_error(tiny_model: Path, tmp_path: Path, content: str, words: str):
    path = tmp_path / "bad.jsonl"
    path.write_text(content)
    done = cli("generate", "--model", tiny_model, "--problems", path, "--out", tmp_path / "o", "--sandbox", "none")
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert words in done.stderr


def test_existing_output_is_not_overwritten(tiny_model: Path, problems: Path, tmp_path: Path):
    out = tmp_path / "kept.jsonl"
    out.write_text("precious")
    done = cli("generate", "--model", tiny_model, "--problems", problems, "--out", out, "--sandbox", "none")
    assert (done.returncode, out.read_text()) == (2, "precious")
    assert "--overwrite" in done.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--engine", "tgi"), "transformers, vllm"),
        (("--chat-format", "absent"), "--chat-format: 'absent'"),
        (("--dtype", "int4"), "bfloat16"),
        (("--listen", "0.0.0.0:0"), "--tls-cert"),
        (("--listen", "nowhere"), "--listen"),
        (("--engines", "0"), "--engines"),
        (("--engine", "endpoint"), "--endpoint"),
        (("--engine", "endpoint", "--endpoint", "localhost:8000"), "http://"),
        (("--scheduler", "fastest"), "kv_balanced"),
    ],
)
def test_bad_serve_options_are_one_line_errors(tiny_model: Path, options: tuple[str, ...], words: str):
    done = cli("serve", "--model", tiny_model, *options)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert words in done.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--preset", "laptop"), "paper-64gpu"),
        (("--layout", "tp3"), "tp1"),
        (("--limit", "9999"), "8192"),
        (("--policy", "fastest"), "oracle"),
        (("--kv-share", "0"), "above 0"),
        (("--trajectories", "/nowhere.jsonl"), "JSONL"),
    ],
)
def test_bad_simulate_options_are_one_line_errors(options: tuple[str, ...], words: str):
    done = cli("simulate", *options)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert words in done.stderr


def test_model_folder_without_tokenizer_is_refused(tmp_path: Path):
    done = cli("serve", "--model", tmp_path)
    assert done.returncode == 2
    assert "tokenizer.json" in done.stderr


def test_sampling_service_starts_without_torch(tmp_path: Path):
    """Its process must stay small: importing what it serves must not import torch."""
    code = "import sys, rstar_rollout.cli, rstar_rollout.serving; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_output_lines_are_json(tiny_model: Path, problems: Path, tmp_path: Path):
    out = tmp_path / "o.jsonl"
    cli(
        *("generate", "--model", tiny_model, "--problems", problems, "--out", out, "--sandbox", "none"),
        *("--max-response-tokens", 5, "--threads", 1),
    )
    assert [json.loads(line)["problem_id"] for line in out.read_text().splitlines()]
