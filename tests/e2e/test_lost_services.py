"""A service that cannot be restarted ends the run with the reason, and the run can be resumed."""

import os
import signal

import pytest
from e2e_processes import nothing_left
from e2e_runs import SCRIPTED_TRAINER

STAGE = "rl-1"


@pytest.fixture(scope="module")
def given_up(make_light):
    """A run whose sandbox died in its second step and did not start again: workplace, gates and trainer."""
    workplace = make_light()
    gates = workplace.gates()
    gates.open(STAGE, 0)
    trainer = workplace.start("run", "light", trainer=SCRIPTED_TRAINER, RSTAR_E2E_BREAKS="sandbox")
    trainer.until(lambda: gates.reached(STAGE, 1, 0), "the second step begins")
    os.kill(trainer.service("sandbox"), signal.SIGKILL)
    trainer.wait()
    return workplace, gates, trainer


def test_run_ends_with_the_exit_code_for_infrastructure(given_up):
    _, _, trainer = given_up
    assert trainer.process.returncode == 1, trainer.told()


def test_reason_is_one_line_with_the_service_the_attempts_and_the_cause(given_up):
    _, _, trainer = given_up
    (line,) = trainer.errors
    for part in ("sandbox service", "3 attempts", "the disk is on fire"):
        assert part in line


def test_reason_is_all_that_is_told(given_up):
    _, _, trainer = given_up
    assert "Traceback" not in trainer.told()


def test_no_process_is_left_behind(given_up):
    workplace, _, _ = given_up
    nothing_left(workplace.mark)


def test_run_can_be_resumed(given_up, reference):
    workplace, gates, _ = given_up
    for step in range(1, 4):
        gates.open(STAGE, step)
    run = workplace.resume("run", trainer=SCRIPTED_TRAINER).succeed()
    assert run.steps() == reference[1].steps()
