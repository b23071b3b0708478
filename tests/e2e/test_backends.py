"""DeepSpeed and Ray beside everything else: their smallest real work, and whole runs whose learner is two Ray actors.

The policy is scripted (hosts/rollout.py), so that both learners are given the same rollouts; what each makes of them
is real. Gradients for every ZeRO stage are compared in rstar-trainer's tests/backends.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from e2e_processes import arguments_of, children_of, eventually, nothing_left
from e2e_runs import SCRIPTED_TRAINER

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(2400)]

HOSTS = Path(__file__).parent / "hosts"
RANKS = 2
ZERO = {"learner.backend": "deepspeed", "learner.ranks": RANKS, "learner.zero_stage": 3, "stages.rl-1.steps": 2}


@pytest.fixture
def workplace(make_workplace):
    return make_workplace()


def test_deepspeed_zero_1_takes_a_step_that_is_the_same_on_all_ranks(workplace):
    shared = {"DS_ACCELERATOR": "cpu", "WORLD_SIZE": str(RANKS), "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, HOSTS / "zero_step.py"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=workplace.folder,
            env=workplace.env(RANK=str(rank), LOCAL_RANK=str(rank), **shared),
        )
        for rank in range(RANKS)
    ]
    outputs = [rank.communicate(timeout=600) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * RANKS, outputs
    weights = [output.splitlines()[-1] for output, _ in outputs]
    assert weights == ["[[0.9], [0.9]]"] * RANKS
    nothing_left(workplace.mark)


def test_ray_runs_an_actor_in_a_process_of_its_own(workplace):
    done = workplace.command(HOSTS / "ray_actor.py", seconds=600)
    assert done.returncode == 0, done.stderr
    driver, actor, answer = done.stdout.splitlines()[-1].split()
    assert answer == "42"
    assert driver != actor
    eventually(lambda: not os.path.exists(f"/proc/{actor}"), "the actor's process has ended", 60)
    nothing_left(workplace.mark)


@pytest.fixture(scope="module")
def on_ranks(make_light):
    """A run of two steps whose learner is two ranks under Ray, and where it was made."""
    workplace = make_light()
    settings = {**ZERO, "engine.weights_dir": workplace.folder / "passing"}
    return workplace.start("ranks", "light", settings, trainer=SCRIPTED_TRAINER).succeed(), workplace


@pytest.fixture(scope="module")
def single(make_light):
    """The same run with the learner in the trainer's own process."""
    return make_light().start("single", "light", {"stages.rl-1.steps": 2}, trainer=SCRIPTED_TRAINER).succeed()


def rank_processes(trainer):
    """Process ids of the ranks. Ray's processes write their titles over the environment that would mark them."""
    found, seen = [], [trainer.process.pid]
    while seen:
        children = children_of(seen.pop())
        seen += children
        found += [
            pid for pid in children if arguments_of(pid)[:1] and arguments_of(pid)[0].startswith("ray::RankActor")
        ]
    return sorted(found)


def test_two_ranks_train_as_a_single_process_does(on_ranks, single):
    run, _ = on_ranks
    assert sorted(run.steps()) == [1, 2]
    for step, (rollouts, figures) in single.steps().items():
        found_rollouts, found = run.steps()[step]
        assert found_rollouts == rollouts
        assert found["update_skipped"] == 0
        assert found == pytest.approx(figures, rel=1e-4, abs=1e-6)


def test_two_ranks_export_the_policy_of_a_single_process(on_ranks, single):
    from safetensors.numpy import load_file

    run, _ = on_ranks
    found, expected = (load_file(each.folder / "policy" / "model.safetensors") for each in (run, single))
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        # A learning rate of 1e-3: signs of gradients near 0 may turn with the order of a sum.
        assert abs(found[name] - tensor).max() <= 1e-4


def test_nothing_is_left_behind(on_ranks):
    run, workplace = on_ranks
    nothing_left(workplace.mark)
    assert list((workplace.folder / "passing").iterdir()) == []
    assert not (run.folder / "weights").exists()


def test_a_killed_rank_ends_the_step_and_the_run_goes_on_from_its_last_checkpoint(on_ranks, make_light):
    undisturbed, _ = on_ranks
    workplace = make_light()
    gates = workplace.gates()
    trainer = workplace.start("killed", "light", ZERO, trainer=SCRIPTED_TRAINER)
    gates.open("rl-1", 0)
    trainer.until(lambda: gates.reached("rl-1", 1, 0), "step 2 has begun")
    before = rank_processes(trainer)
    assert len(before) == RANKS
    os.kill(before[0], signal.SIGKILL)
    gates.open("rl-1", 1)
    run = trainer.succeed()
    assert "a new learner takes its place" in run.events()
    # Step 1 was in a checkpoint; step 2 is there once, with the figures of a run that nothing disturbed.
    assert run.steps() == undisturbed.steps()
    nothing_left(workplace.mark)
