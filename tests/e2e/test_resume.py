"""A real policy: `kill -9` in the middle of a stage and `resume` give the run that nothing disturbed, bit for bit."""

import signal

import pytest
from e2e_processes import nothing_left

# The shared runs that the first test waits for take minutes, many on a busy machine.
pytestmark = [pytest.mark.heavy, pytest.mark.timeout(2400)]

STEPS = 3


@pytest.fixture(scope="module")
def whole(make_real, taught):
    """A run that nothing disturbed."""
    return start(make_real(), taught).succeed()


@pytest.fixture(scope="module")
def resumed(make_real, taught):
    """A run whose trainer was killed while its second step was rolled out, resumed; and the checkpoints at the kill."""
    workplace = make_real()
    trainer = start(workplace, taught)

    def second_step_comes_in():
        # The phase is set by the first scored trajectory of a step; the checkpoint is written meanwhile.
        found = workplace.status("run")
        rolled_out = found is not None and found["step"] == 1 and found["phase"].startswith("rollout")
        return rolled_out and trainer.run.checkpoints()

    trainer.until(second_step_comes_in, "trajectories of the second step come in")
    trainer.signal(signal.SIGKILL)
    trainer.wait()
    kept = trainer.run.checkpoints()
    nothing_left(workplace.mark)
    return workplace.resume("run").succeed(), kept


def start(workplace, policy):
    return workplace.start("run", "real", {"model.source": policy, "sft.enabled": False, "stages.rl-1.steps": STEPS})


def test_kill_came_after_the_first_checkpoint_and_before_the_second(resumed):
    assert resumed[1] == ["step-000001"]


@pytest.mark.parametrize("step", range(1, STEPS + 1))
def test_rollouts_of_a_step_are_the_same(whole, resumed, step):
    assert resumed[0].steps()[step][0] == whole.steps()[step][0]


@pytest.mark.parametrize("step", range(1, STEPS + 1))
def test_figures_of_a_step_are_bit_equal(whole, resumed, step):
    assert resumed[0].steps()[step][1] == whole.steps()[step][1]


def test_something_was_learned_after_the_kill(whole):
    """Otherwise equal losses would mean nothing."""
    later = [figures for step, (_, figures) in whole.steps().items() if step > 1]
    assert any("loss" in figures and figures["grad_norm"] > 0 for figures in later)


def test_policy_at_the_end_is_bit_equal(whole, resumed):
    files = [run.folder / "policy" / "model.safetensors" for run in (whole, resumed[0])]
    assert files[0].read_bytes() == files[1].read_bytes()
