"""The command line as a user starts it: output, one-line errors, exit codes."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rstar_model.testing import write_family
from rstar_trainer.recipe import load_recipe
from rstar_trainer.run_folder import RunFolder


def trainer(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rstar_trainer", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=cwd,
        env={**os.environ, "COLUMNS": "100"},
        check=False,
    )


def refused_after_output(*arguments: object, cwd: Path | None = None) -> str:
    result = trainer(*arguments, cwd=cwd)
    assert result.returncode == 2, result
    (line,) = result.stderr.splitlines()
    return line


def refused(*arguments: object, cwd: Path | None = None) -> str:
    result = trainer(*arguments, cwd=cwd)
    assert result.returncode == 2, result
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: ")
    return line


def test_help_names_the_commands() -> None:
    text = trainer("--help").stdout
    assert all(name in text for name in ("run", "plan", "resume", "data", "doctor", "status", "checkpoint", "stop"))


@pytest.mark.parametrize("arguments", [["--help"], ["plan", "--json"], ["data", "check", "absent.jsonl"]])
def test_what_trains_nothing_imports_no_torch(arguments: list[str]) -> None:
    code = (
        "import sys\n"
        "from rstar_trainer.cli import main\n"
        f"sys.argv = ['rstar-trainer', *{arguments!r}]\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_version_is_printed() -> None:
    assert trainer("--version").stdout.startswith("rstar-trainer ")


def test_plan_prints_json_and_starts_nothing(tmp_path: Path) -> None:
    result = trainer("plan", "--set", "seed=4", "--json", cwd=tmp_path)
    assert json.loads(result.stdout)["recipe"]["seed"] == 4
    assert list(tmp_path.iterdir()) == []


def test_plan_prints_tables() -> None:
    result = trainer("plan")
    assert result.returncode == 0
    assert "rl-3, tool disabled" in result.stdout


@pytest.mark.parametrize(
    ("setting", "field"),
    [
        ("sedd=2", "sedd"),
        ("data.train.path=absent.jsonl", "data.train.path"),
        ("stages.rl-1.group_size=99", "stages.rl-1"),
        ("stages.rl-1.group_size=1", "stages.rl-1.group_size"),
        ("model.source=./absent", "model.source"),
    ],
)
def test_unusable_settings_are_one_line_and_start_nothing(tmp_path: Path, setting: str, field: str) -> None:
    assert refused("run", "--set", setting, cwd=tmp_path).startswith(f"error: {field}:")
    assert list(tmp_path.iterdir()) == []


def test_a_non_integer_answer_names_file_line_and_value(tmp_path: Path) -> None:
    rows = [{"problem": f"p{n}", "answer": "1/2" if n == 3 else n} for n in range(8)]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    line = refused("run", "--set", "data.train.path=p.jsonl", cwd=tmp_path)
    assert line.startswith("error: p.jsonl:4: '1/2'")
    assert [path.name for path in tmp_path.iterdir()] == ["p.jsonl"]


def test_a_model_folder_without_tokenizer_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    assert "tokenizer" in refused("run", "--set", f"model.source={folder}", cwd=tmp_path)


def test_an_unknown_recipe_lists_the_built_in_ones() -> None:
    assert "quickstart" in refused("run", "no-such-recipe")


def test_a_run_folder_that_holds_a_run_is_refused(tmp_path: Path) -> None:
    RunFolder.create(load_recipe("quickstart", [f"run_dir={tmp_path}"]))
    assert "rstar-trainer resume" in refused("run", "--set", f"run_dir={tmp_path}")


@pytest.mark.parametrize("command", ["resume", "status", "stop", "checkpoint"])
def test_a_folder_without_a_run_is_refused(tmp_path: Path, command: str) -> None:
    assert "run.json" in refused(command, tmp_path)


def test_data_check_describes_a_file(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"problem": "1+1?", "answer": 2}\n{"problem": "1+1?", "answer": "1,000"}\n')
    found = json.loads(trainer("data", "check", path, "--json").stdout)
    assert (found["problems"], found["different_texts"], len(found["sha256"])) == (2, 1, 64)


def test_data_check_takes_any_answer_when_asked(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"problem": "half?", "answer": "1/2"}\n')
    assert f"{path}:1" in refused("data", "check", path)
    assert trainer("data", "check", path, "--answers", "any").returncode == 0
    assert "--answers" in refused("data", "check", path, "--answers", "some")


def test_doctor_prints_json() -> None:
    assert json.loads(trainer("doctor", "--json").stdout)["packages"]["rstar-trainer"]


CHAT = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]}


def test_sft_data_is_read_told_and_written(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(CHAT) + "\n{}\n")
    result = trainer("data", "sft", "a.jsonl", "--out", "b.jsonl", cwd=tmp_path)
    assert result.stdout.splitlines() == [
        "a.jsonl: 2 rows (messages 1), 1 kept with 0 tool calls",
        "  left out 1: no known layout (line 2)",
        "1 conversations written to b.jsonl",
    ]
    again = trainer("data", "sft", "b.jsonl", "a.jsonl", "--json", cwd=tmp_path)
    assert json.loads(again.stdout)["conversations"] == 2


def test_sft_data_is_shown_token_by_token(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(CHAT) + "\n")
    write_family(tmp_path / "model", "smollm2")
    lines = trainer("data", "sft", "a.jsonl", "--model", "model", cwd=tmp_path).stdout.splitlines()
    loss = [line for line in lines[2:-1] if line.split()[3] == "1"]
    assert "".join(ast.literal_eval(line.split(maxsplit=4)[4]) for line in loss) == (
        "</reason>\n<answer>Yo</answer><|im_end|>"
    )
    assert "--index" in refused_after_output("data", "sft", "a.jsonl", "--model", "model", "--index", "1", cwd=tmp_path)


def test_sft_data_without_any_use_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{}\n")
    assert "no known layout" in refused("data", "sft", "a.jsonl", cwd=tmp_path)


def test_what_resume_may_accept_is_named(tmp_path: Path) -> None:
    assert "data, recipe or packages" in refused("resume", "run", "--accept", "all", cwd=tmp_path)
