"""Input that cannot work is refused in one line that says what to do, with exit code 2, and nothing is started."""

import json
import os
import shutil
import socket
import subprocess
import sys

import pytest
from e2e_processes import nothing_left
from e2e_runs import RECIPES, TRAINER, set_options, stop_process, write_rows

RECIPE = str(RECIPES / "light.toml")


def refused(workplace, *arguments):
    """The one error line of a command."""
    done = workplace.command(*arguments)
    assert done.returncode == 2, done
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    nothing_left(workplace.mark)
    return line


def refused_run(workplace, **settings):
    """The one error line of `run`; no run folder is made."""
    changed = {key.replace("__", "."): value for key, value in settings.items()}
    line = refused(workplace, *TRAINER, "run", RECIPE, *set_options({"run_dir": "run", **changed}))
    assert not (workplace.folder / "run").exists()
    return line


def test_unknown_recipe_key(light):
    line = refused_run(light, tool__wall_secs=3)
    assert "tool.wall_secs" in line
    assert 'did you mean "wall_seconds"' in line


def test_missing_data_file(light):
    line = refused_run(light, data__train__path="absent.jsonl")
    assert "data.train.path" in line
    assert "absent.jsonl" in line


def test_missing_recipe(light):
    line = refused(light, *TRAINER, "run", "absent.toml")
    assert "absent.toml" in line
    assert "quickstart" in line


def test_answer_that_is_no_integer_names_file_and_line(light):
    rows = [{"problem": "What is 6*7?", "answer": "42"}, {"problem": "What is 1/2?", "answer": "1/2"}]
    write_rows(light.folder / "train.jsonl", rows)
    line = refused_run(light)
    assert "train.jsonl:2" in line
    assert "integer" in line


def test_gold_answers_that_the_reward_service_cannot_read(light):
    """All services had started; they are ended, and the folder takes the run with mended data."""
    good = {"id": "good", "problem": "What is 6*7?", "answer": "42"}
    bad = [{"id": f"bad-{n}", "problem": "What is it?", "answer": "(("} for n in range(2)]
    write_rows(light.folder / "train.jsonl", [good, *bad, {**good, "id": "other"}])
    changed = {"run_dir": "run", "data.train.answers": "any"}
    line = refused(light, *TRAINER, "run", RECIPE, *set_options(changed))
    assert "train.jsonl:2, id bad-0: '(('" in line
    assert "such as 42" in line
    assert "(1 more like it)" in line
    assert not (light.folder / "run" / "run.json").exists()


def test_gold_answers_that_a_reward_service_elsewhere_cannot_read(light):
    write_rows(light.folder / "heldout.jsonl", [{"problem": "What is it?", "answer": "(("}] * 2)
    command = [sys.executable, "-m", "rstar_reward", "serve", "--workers", "1", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        endpoint = json.loads(server.stdout.readline())["listening"]
        changed = {"services.reward.endpoint": endpoint, "run_dir": "run", "data.heldout.answers": "any"}
        line = refused(light, *TRAINER, "run", RECIPE, *set_options(changed))
        stop_process(server)
    assert "heldout.jsonl:1, id heldout-1: '(('" in line
    assert "(1 more like it)" in line


@pytest.mark.parametrize(
    ("group_size", "rollouts", "named"),
    [(5, 4, "group_size of at most rollouts_per_problem (4)"), (1, 4, "group_size"), (2, 1, "rollouts_per_problem")],
)
def test_group_sizes_that_do_not_work(light, group_size, rollouts, named):
    stage = "stages.rl-1."
    options = set_options({f"{stage}group_size": group_size, f"{stage}rollouts_per_problem": rollouts})
    line = refused(light, *TRAINER, "run", RECIPE, *options)
    assert "stages.rl-1" in line
    assert named in line


def test_more_problems_a_step_than_there_are(light):
    line = refused(light, *TRAINER, "run", RECIPE, *set_options({"stages.rl-1.problems_per_step": 99}))
    assert "stages.rl-1.problems_per_step" in line


@pytest.mark.parametrize(
    ("absent", "named"),
    [("tokenizer.json", "tokenizer"), ("config.json", "config.json"), ("model.safetensors", "weights")],
)
def test_model_folder_that_lacks_something(light, tiny_policy, absent, named):
    shutil.copytree(tiny_policy, light.folder / "partial")
    (light.folder / "partial" / absent).unlink()
    line = refused_run(light, model__source="./partial")
    assert "model.source" in line
    assert named in line


def test_missing_certificate(light):
    line = refused_run(light, services__reward__endpoint="grpcs://127.0.0.1:7102", services__reward__ca="absent.pem")
    assert "services.reward.ca" in line


def test_certificate_without_tls(light):
    line = refused_run(light, services__reward__endpoint="grpc://127.0.0.1:7102", services__reward__ca="absent.pem")
    assert "services.reward" in line
    assert "grpcs://" in line


def test_run_folder_that_holds_a_run(light):
    (light.folder / "run").mkdir()
    (light.folder / "run" / "run.json").write_text("{}")
    line = refused(light, *TRAINER, "run", RECIPE, *set_options({"run_dir": "run"}))
    assert "rstar-trainer resume" in line
    assert os.listdir(light.folder / "run") == ["run.json"]


def test_resume_of_a_folder_without_a_run(light):
    assert "absent" in refused(light, *TRAINER, "resume", "absent")


def test_port_in_use(light):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        assert address in refused(light, "-m", "rstar_sandbox", "serve", "--listen", address)


def test_embedded_service_that_refuses_its_input_ends_the_run_before_it_begins(light, tiny_policy):
    """Its one line is passed on, and the services that had started are ended."""
    shutil.copytree(tiny_policy, light.folder / "other")
    (light.folder / "other" / "tokenizer.json").write_text("{}")
    line = refused(light, *TRAINER, "run", RECIPE, *set_options({"model.source": "./other", "run_dir": "run"}))
    assert "tokenizer" in line
