"""All command lines tell wrong arguments in one way: one line with option, value and what is accepted, exit code 2."""

import subprocess
import sys

import pytest

COMMANDS = {
    "rstar_sandbox": ("exec", "-c", "1", "--timeout", "soon"),
    "rstar_reward": ("grade", "in.jsonl", "out.jsonl", "--workers", "soon"),
    "rstar_rollout": ("simulate", "--seed", "soon"),
    "rstar_eval": ("run", "--problems", "p.jsonl", "--out", "out", "--samples", "soon"),
    "rstar_model": ("inspect", "t.jsonl", "--model", "m", "--index", "soon"),
    "rstar_trainer": ("data", "check", "p.jsonl", "--limit", "soon"),
}


def refused(*arguments: str) -> str:
    """The one error line of a command that refuses its arguments."""
    done = subprocess.run([sys.executable, "-m", *arguments], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, ""), done
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    return line.removeprefix("error: ")


@pytest.mark.parametrize("module", list(COMMANDS))
def test_a_value_of_the_wrong_type(module: str) -> None:
    arguments = COMMANDS[module]
    assert refused(module, *arguments).startswith(f"{arguments[-2]}: 'soon' is not usable; accepted: a ")


@pytest.mark.parametrize("module", list(COMMANDS))
def test_an_option_that_does_not_exist(module: str) -> None:
    command = COMMANDS[module][0]
    line = refused(module, command, *(("check",) if command == "data" else ()), "--no-such-option")
    assert line.startswith("--no-such-option: no such option; accepted: what `")
    assert f" {command}" in line


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("rstar_reward", "grade", "in.jsonl"), "OUT.jsonl: missing; accepted: Lines {id,"),
        (("rstar_rollout", "generate", "--out", "o"), "--model: missing; accepted: Hugging Face"),
        (("rstar_sandbox", "exec", "--timeout"), "--timeout: its value is missing; accepted: a value"),
        (("rstar_sandbox", "serve", "--role", "none"), "--role: 'none' is not usable; accepted: one of all, dispatch"),
        (
            ("rstar_model", "inspect", "t", "--model", "m", "--count", "0"),
            "--count: '0' is not usable; accepted: a number ",
        ),
        (("rstar_trainer", "plam"), "no such command 'plam'"),
        (("rstar_eval", "report", "a", "--json", "--plot"), "--plot: its value is missing; accepted: a value"),
    ],
)
def test_what_is_missing_out_of_range_or_none_of_the_choices(arguments: tuple[str, ...], told: str) -> None:
    assert refused(*arguments).startswith(told)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("rstar_sandbox", "exec", "-c", "1", "--timeout", "-1"), "--timeout: -1.0"),
        (("rstar_sandbox", "exec", "-c", "1", "--memory-mb", "inf"), "--memory-mb: inf"),
        (("rstar_sandbox", "serve", "--default-timeout", "nan"), "--default-timeout: nan"),
        (
            ("rstar_rollout", "generate", "--model", "m", "--problems", "p", "--out", "o", "--top-p", "2"),
            "--top-p: 2.0",
        ),
        (("rstar_eval", "run", "--problems", "p", "--out", "o", "--temperature", "-1"), "--temperature: -1.0"),
        (("rstar_eval", "run", "--problems", "p", "--out", "o", "--tool-seconds", "-1"), "--tool-seconds: -1.0"),
    ],
)
def test_a_limit_out_of_range_is_named_by_its_option(arguments: tuple[str, ...], told: str) -> None:
    assert refused(*arguments).startswith(f"{told} is not usable; accepted: ")


@pytest.mark.parametrize("module", list(COMMANDS))
def test_no_arguments_print_the_help(module: str) -> None:
    done = subprocess.run([sys.executable, "-m", module], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 2)
    assert "Usage: " in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
