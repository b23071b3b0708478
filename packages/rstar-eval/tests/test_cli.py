"""The command line: one-line errors, and reports of stored evaluations. The full run is in test_services.py."""

import json
import subprocess
import sys
from dataclasses import dataclass

import pytest

from rstar_eval.cli import main
from rstar_eval.description import SAMPLES_FILE, Description
from rstar_eval.problems import EvalProblem
from rstar_eval.sample_log import SampleLog
from rstar_eval.settings import EvalSettings
from rstar_model.types import EndReason


@dataclass(frozen=True)
class Done:
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def rstar_eval(monkeypatch, capsys):
    """Runs the command line in this process, on a wide terminal."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["rstar-eval", *map(str, arguments)])
        with pytest.raises(SystemExit) as caught:
            main()
        output = capsys.readouterr()
        return Done(caught.value.code or 0, output.out, output.err)

    return run


@pytest.fixture
def stored(tmp_path, make_sample):
    """The folder of an evaluation with three right samples, one wrong and one cut."""
    folder = tmp_path / "stored"
    problems = tuple(EvalProblem(name, f"text of {name}", "2", ("word",)) for name in "abcde")
    Description("stored", "", EvalSettings(), problems).write(folder)
    with SampleLog(folder / SAMPLES_FILE) as log:
        for name in "abc":
            log.append(make_sample(name, tags=["word"]))
        log.append(make_sample("d", status="wrong", tags=["word"]))
        log.append(make_sample("e", status="no_answer", end_reason=EndReason.TRUNCATED, tags=["word"]))
    return folder


def test_report_shows_score_settings_and_warnings(rstar_eval, stored):
    done = rstar_eval("report", stored)
    assert done.returncode == 0, done.stderr
    for text in ("0.600", "0.6", "word", "20% of the samples were cut"):
        assert text in done.stdout


def test_report_as_json_is_one_object_a_line(rstar_eval, stored):
    done = rstar_eval("report", stored, stored, "--json")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["pass_at_1"] for line in lines] == [0.6, 0.6]


def test_report_draws_a_picture(rstar_eval, stored, tmp_path):
    done = rstar_eval("report", stored, "--plot", tmp_path / "deep" / "scores.png")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "deep" / "scores.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["report", "absent"], "absent"),
        (["run", "--problems", "absent.jsonl", "--out", "o", "--model", "."], "absent.jsonl"),
        (["run", "--problems", "{file}", "--out", "o"], "--model"),
        (["run", "--problems", "{file}", "--out", "o", "--model", ".", "--rollout", "grpc://127.0.0.1:1"], "--rollout"),
        (["run", "--problems", "{file}", "--out", "o", "--model", "no/such"], "no/such"),
        (["run", "--problems", "{file}", "--out", "{file}", "--model", "."], "--out"),
        (
            ["run", "--problems", "{file}", "--out", "o", "--model", ".", "--samples", "2", "--temperature", "0"],
            "samples",
        ),
        (["run", "--problems", "{file}", "--out", "o", "--model", ".", "--token-file", "absent"], "--token-file"),
        (["run", "--problems", "{file}", "--problems", "{file}", "--out", "o", "--model", "."], "id"),
        (["run", "--problems", "{file}", "--out", "o", "--rollout", "nonsense", "--reward", "unix:/x"], "nonsense"),
        (
            ["run", "--problems", "{file}", "--out", "o", "--rollout", "grpc://127.0.0.1:1", "--sandbox", "unix:/x"],
            "--sandbox",
        ),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(rstar_eval, tmp_path, monkeypatch, arguments, named):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "problems.jsonl").write_text('{"problem": "1+1?", "answer": "2", "id": "a"}\n')
    done = rstar_eval(*(argument.format(file="problems.jsonl") for argument in arguments))
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.returncode == 2, done.stderr
    assert len(errors) == 1
    assert named in errors[0]
    assert "Traceback" not in done.stderr


def test_help_names_the_commands():
    command = [sys.executable, "-m", "rstar_eval", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0
    assert "run" in done.stdout
    assert "report" in done.stdout
