"""However a trainer ends, its services end with it, and what it had done is kept."""

import os
import signal

from e2e_processes import marked, nothing_left
from e2e_runs import SCRIPTED_TRAINER, TRAINER

STAGE = "rl-1"
SERVICES = ("sandbox", "reward", "sampling", "rollout")


def in_second_step(light, gates):
    """A trainer whose second step waits for its first answers."""
    gates.open(STAGE, 0)
    gates.open(STAGE, 1, 0)
    trainer = light.start("run", "light", trainer=SCRIPTED_TRAINER)
    trainer.until(lambda: gates.reached(STAGE, 1, 1), "the second step comes to its answers")
    for name in SERVICES:
        trainer.service(name)
    # The sandbox runs programs in processes of its own, which have to go as well.
    assert len(marked(light.mark)) > len(SERVICES)
    return trainer


def test_success_leaves_no_process_behind(reference):
    workplace, _ = reference
    nothing_left(workplace.mark)


def test_killed_trainer_leaves_no_process_behind_and_is_resumed_as_if_nothing_had_been(light, gates, reference):
    trainer = in_second_step(light, gates)
    trainer.signal(signal.SIGKILL)
    assert trainer.wait() == -signal.SIGKILL
    nothing_left(light.mark)
    for step in range(1, 4):
        gates.open(STAGE, step)
    assert light.resume("run", trainer=SCRIPTED_TRAINER).succeed().steps() == reference[1].steps()


def test_ctrl_c_leaves_no_process_behind_and_says_how_to_go_on(light, gates):
    trainer = in_second_step(light, gates)
    # A terminal sends it to the whole foreground group.
    os.killpg(trainer.process.pid, signal.SIGINT)
    assert trainer.wait() == 130
    (line,) = trainer.errors
    assert line == "error: interrupted; `rstar-trainer resume run` continues the run"
    assert "Traceback" not in trainer.told()
    nothing_left(light.mark)


def test_second_trainer_is_kept_out_of_a_run_folder_in_use(light, gates):
    gates.open(STAGE, 0, 0)
    trainer = light.start("run", "light", trainer=SCRIPTED_TRAINER)
    trainer.until(lambda: gates.reached(STAGE, 0, 1), "the run is under way")
    second = light.command(*TRAINER, "resume", "run")
    assert second.returncode == 2
    assert "a trainer is at work in it" in second.stderr
    assert trainer.process.poll() is None
