"""A running job is steered from outside: a checkpoint on request, a stop after the current step, and on with it."""

import pytest
from e2e_runs import SCRIPTED_TRAINER, TRAINER

STAGE = "rl-1"


@pytest.fixture(scope="module")
def stopped(make_light):
    """A run without checkpoints of its own, which was asked for one in step 1 and to stop in step 2.

    Returns its workplace, gates, trainer, and the checkpoints there were after step 1.
    """
    workplace = make_light()
    gates = workplace.gates()
    for step in (0, 1):
        gates.open(STAGE, step, 0)
    trainer = workplace.start("run", "light", {"checkpoint.every_steps": 10}, trainer=SCRIPTED_TRAINER)
    trainer.until(lambda: gates.reached(STAGE, 0, 1), "the first step is under way")
    ask(workplace, "checkpoint")
    gates.open(STAGE, 0, 1)
    trainer.until(lambda: gates.reached(STAGE, 1, 1), "the second step is under way")
    requested = trainer.run.checkpoints()
    ask(workplace, "stop")
    gates.open(STAGE, 1, 1)
    trainer.succeed()
    return workplace, gates, trainer, requested


def ask(workplace, command):
    done = workplace.command(*TRAINER, command, "run")
    assert done.returncode == 0, done.stderr


def test_requested_checkpoint_is_written_after_the_step(stopped):
    assert stopped[3] == ["step-000001"]


def test_stopped_run_has_a_checkpoint_of_its_last_step(stopped):
    run = stopped[2].run
    assert list(run.steps()) == [1, 2]
    assert run.checkpoints()[-1] == "step-000002"


def test_stopped_run_says_how_to_go_on(stopped):
    assert "rstar-trainer resume" in stopped[2].run.events()


def test_stopped_run_answers_no_more(stopped):
    done = stopped[0].command(*TRAINER, "status", "run")
    assert done.returncode == 2
    assert done.stderr.startswith("error: run: ")


def test_resumed_run_equals_one_that_never_stopped(stopped, reference):
    workplace, gates, trainer, _ = stopped
    for step in (2, 3):
        gates.open(STAGE, step)
    workplace.resume("run", trainer=SCRIPTED_TRAINER).succeed()
    assert trainer.run.steps() == reference[1].steps()
