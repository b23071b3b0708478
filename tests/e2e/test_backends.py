"""DeepSpeed and Ray as installed beside everything else: they load on this machine and do their smallest real work."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from e2e_processes import eventually, nothing_left

pytestmark = pytest.mark.heavy

HOSTS = Path(__file__).parent / "hosts"
RANKS = 2


@pytest.fixture
def workplace(make_workplace):
    return make_workplace()


def test_deepspeed_zero_1_takes_a_step_that_is_the_same_on_all_ranks(workplace):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    shared = {
        "DS_ACCELERATOR": "cpu",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(RANKS),
        "OMP_NUM_THREADS": "1",
    }
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
