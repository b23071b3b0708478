"""A run that is resumed with other data, another recipe or other packages says so, and goes on only when told to."""

import json
import shutil

import pytest
from e2e_runs import SCRIPTED_TRAINER, TRAINER, Run, write_rows


@pytest.fixture
def copied(light, reference):
    """A folder with a copy of the finished reference run."""
    shutil.copytree(reference[1].folder, light.folder / "run")
    return light


def change_data(workplace):
    path = workplace.folder / "train.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    write_rows(path, [{**row, "answer": str(int(row["answer"]) + 1)} for row in rows])


def change_recipe(workplace):
    path = workplace.folder / "run" / "run.json"
    record = json.loads(path.read_text())
    record["recipe"]["stages"][0]["learning_rate"] = 0.125
    path.write_text(json.dumps(record))


def change_packages(workplace):
    for path in (workplace.folder / "run" / "checkpoints").glob("*/state.json"):
        record = json.loads(path.read_text())
        record["identity"]["packages"]["torch"] = "1.0"
        path.write_text(json.dumps(record))


CHANGES = {
    "data": (change_data, "data.train was "),
    "recipe": (change_recipe, "stages.rl-1.learning_rate was 0.001, is 0.125"),
    "packages": (change_packages, "torch was 1.0, is "),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_change_is_one_line_that_names_it_and_the_flag(copied, kind):
    change, shown = CHANGES[kind]
    change(copied)
    done = copied.command(*TRAINER, "resume", "run")
    assert done.returncode == 2
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert shown in line
    assert f"--accept {kind}" in line


def test_accepted_change_is_in_the_log_and_the_run_goes_on(copied):
    change_packages(copied)
    done = copied.command(*SCRIPTED_TRAINER, "resume", "run", "--accept", "packages")
    assert done.returncode == 0, done.stderr
    assert "accepted changes of packages: torch was 1.0" in Run(copied.folder / "run").events()


def test_unknown_kind_is_refused(copied):
    done = copied.command(*TRAINER, "resume", "run", "--accept", "everything")
    assert done.returncode == 2
    assert done.stderr.strip() == "error: --accept: 'everything' is not usable; accepted: data, recipe or packages"
