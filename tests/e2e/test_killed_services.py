"""A service that is killed in mid-step is restarted, and the step goes on as if nothing had been.

One run, four steps, and in each another service is killed with SIGKILL while the step needs it:

1. the sandbox, while it runs programs;
2. the reward service, with calls under way: it is frozen first, so that they cannot be answered;
3. the sampling service, likewise;
4. the rollout service, before its first turn.
"""

import os
import signal

import pytest
from e2e_processes import nothing_left
from e2e_runs import SCRIPTED_TRAINER

STAGE, ROLLOUTS = "rl-1", 8
KILLED = {1: "sandbox", 2: "reward", 3: "sampling", 4: "rollout"}


@pytest.fixture(scope="module")
def disturbed(make_light):
    """The workplace and the run in which each service was killed once."""
    workplace = make_light()
    gates = workplace.gates()
    trainer = workplace.start("disturbed", "light", trainer=SCRIPTED_TRAINER)

    trainer.until(lambda: gates.reached(STAGE, 0, 0), "the first step begins")
    gates.open(STAGE, 0, 0)
    trainer.until(lambda: trainer.programs_running() > 0, "programs run")
    kill(trainer, "sandbox")
    # Before this gate is opened, the step cannot end.
    gates.open(STAGE, 0, 1)

    for step, name in ((1, "reward"), (2, "sampling")):
        gates.open(STAGE, step, 0)
        trainer.until(lambda step=step: gates.reached(STAGE, step, 1), f"step {step + 1} comes to its answers")
        former = trainer.service(name)
        freeze(former)
        gates.open(STAGE, step, 1)
        trainer.until(lambda step=step: gates.passed(STAGE, step, 1) == ROLLOUTS, "all answers were given")
        kill(trainer, name)

    trainer.until(lambda: gates.reached(STAGE, 3, 0), "the last step begins")
    kill(trainer, "rollout")
    gates.open(STAGE, 3)
    return workplace, trainer.succeed()


def freeze(pid):
    os.kill(pid, signal.SIGSTOP)


def kill(trainer, name):
    former = trainer.service(name)
    os.kill(former, signal.SIGKILL)
    trainer.replaced(name, former)


@pytest.mark.parametrize("name", KILLED.values())
def test_killed_service_was_restarted_once(disturbed, name):
    _, run = disturbed
    assert run.events().count(f"the {name} service died and was restarted") == 1


@pytest.mark.parametrize("step", KILLED)
def test_each_trajectory_is_counted_once(disturbed, step):
    _, run = disturbed
    found = run.trajectories(STAGE, step)
    assert len(found) == ROLLOUTS
    assert len({(rollout["group_id"], rollout["sample_index"]) for rollout in found}) == ROLLOUTS
    _, figures = run.steps()[step]
    assert (figures["rollouts"], figures["unscorable"]) == (ROLLOUTS, 0)


@pytest.mark.parametrize("step", KILLED)
def test_no_trajectory_tells_of_the_infrastructure(disturbed, step):
    _, run = disturbed
    for rollout in run.trajectories(STAGE, step):
        assert (rollout["end_reason"], rollout["error"]) == ("answered", "")
        assert [call["status"] for call in rollout["tool_calls"]] == ["ok"]
        assert rollout["status"] in ("correct", "wrong")


@pytest.mark.parametrize("step", KILLED)
def test_step_equals_that_of_an_undisturbed_run(disturbed, reference, step):
    assert disturbed[1].steps()[step] == reference[1].steps()[step]


def test_restarted_engine_generates_with_the_weights_of_its_step(disturbed):
    _, run = disturbed
    for step in KILLED:
        spans = [span for rollout in run.trajectories(STAGE, step) for span in rollout["spans"]]
        # The initial policy has version 1, and every step here makes a new one.
        assert {span["weight_version"] for span in spans if span["kind"] == "policy"} == {step}


def test_killed_services_leave_no_process_behind(disturbed):
    workplace, _ = disturbed
    nothing_left(workplace.mark)
