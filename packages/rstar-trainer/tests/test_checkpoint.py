"""Checkpoints survive crashes and come back as they were."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from rstar_protos.errors import InfrastructureError, UserInputError
from rstar_trainer.checkpoint import (
    CheckpointWriter,
    RunState,
    begin_checkpoint,
    latest_checkpoint,
    read_checkpoint,
)
from rstar_trainer.host_copy import host_copy
from rstar_trainer.run_identity import RunIdentity

IDENTITY = RunIdentity({"name": "r", "seed": 1}, {"torch": "2"}, {"data.train": "f"})


class Learner:
    """Saves one tensor."""

    def __init__(self, value: float = 0.0) -> None:
        self.weight = torch.full((4,), value)
        self.may_write = threading.Event()
        self.may_write.set()

    def begin_save(self, folder: Path) -> Callable[[], None]:
        copied = host_copy({"w": self.weight})

        def write() -> None:
            self.may_write.wait()
            torch.save(copied, folder / "learner.pt")

        return write


def write(run_dir: Path, state: RunState, keep: int = 3, value: float = 0.0) -> Path:
    return begin_checkpoint(run_dir, state, IDENTITY, Learner(value), keep)()


def saved(folder: Path) -> float:
    return float(torch.load(folder / "learner.pt")["w"][0])


def test_what_was_written_is_read(tmp_path: Path) -> None:
    state = RunState(entry=2, step=3, global_step=19, updates=18, hard_problems={"rl-3": ["a"]})
    found, identity = read_checkpoint(write(tmp_path, state))
    assert found == state
    assert identity == IDENTITY
    assert found.weight_version == 19


def test_the_newest_is_found_and_older_ones_go(tmp_path: Path) -> None:
    for step in (1, 2, 10):
        write(tmp_path, RunState(global_step=step), keep=2)
    assert [path.name for path in sorted((tmp_path / "checkpoints").iterdir())] == ["step-000002", "step-000010"]
    assert latest_checkpoint(tmp_path) == tmp_path / "checkpoints" / "step-000010"


def test_what_changes_after_the_beginning_is_not_in_it(tmp_path: Path) -> None:
    learner, state = Learner(1.0), RunState(global_step=1, samplers={"all": {"position": 3}})
    learner.may_write.clear()
    with CheckpointWriter(tmp_path, IDENTITY, keep=2) as writer:
        writer.begin(state, learner)
        # Training goes on before a byte is written.
        learner.weight += 1
        state.global_step, state.samplers["all"]["position"] = 2, 4
        assert latest_checkpoint(tmp_path) is None
        learner.may_write.set()
    folder = tmp_path / "checkpoints" / "step-000001"
    assert read_checkpoint(folder)[0].samplers == {"all": {"position": 3}}
    assert saved(folder) == 1.0


def test_a_checkpoint_that_cannot_be_written_is_reported_by_the_next(tmp_path: Path) -> None:
    class Failing(Learner):
        def begin_save(self, folder: Path) -> Callable[[], None]:
            def write() -> None:
                raise OSError("no space left")

            return write

    writer = CheckpointWriter(tmp_path, IDENTITY, keep=2)
    writer.begin(RunState(global_step=1), Failing())
    with pytest.raises(InfrastructureError, match="no space left"):
        writer.begin(RunState(global_step=2), Learner())
    assert latest_checkpoint(tmp_path) is None


def test_a_crash_while_writing_leaves_the_last_good_one(tmp_path: Path) -> None:
    write(tmp_path, RunState(global_step=1))
    # What a kill in the middle of the second one leaves behind.
    partial = tmp_path / "checkpoints" / "step-000002.partial"
    partial.mkdir()
    (partial / "learner.pt").write_bytes(b"half")
    assert latest_checkpoint(tmp_path) == tmp_path / "checkpoints" / "step-000001"
    write(tmp_path, RunState(global_step=2))
    assert read_checkpoint(tmp_path / "checkpoints" / "step-000002")[0].global_step == 2


def test_the_same_step_can_be_written_again(tmp_path: Path) -> None:
    write(tmp_path, RunState(global_step=1, tokens=1))
    folder = write(tmp_path, RunState(global_step=1, tokens=2))
    assert read_checkpoint(folder)[0].tokens == 2
    assert [path.name for path in folder.parent.iterdir()] == ["step-000001"]


def test_a_crash_while_the_same_step_is_replaced_leaves_the_replaced_one(tmp_path: Path) -> None:
    folder = write(tmp_path, RunState(global_step=1, tokens=1))
    folder.rename(folder.with_name("step-000001.replaced"))
    found = latest_checkpoint(tmp_path)
    assert found is not None
    assert read_checkpoint(found)[0].tokens == 1


_ENDLESS_WRITER = """
import sys
from pathlib import Path
import torch
from rstar_trainer.checkpoint import CheckpointWriter, RunState
from rstar_trainer.run_identity import RunIdentity

class Learner:
    def begin_save(self, folder):
        return lambda: torch.save({"w": torch.zeros(1 << 20)}, folder / "learner.pt")

writer = CheckpointWriter(Path(sys.argv[1]), RunIdentity({}, {}, {}), keep=2)
for step in range(1, 10_000):
    writer.begin(RunState(global_step=step), Learner())
    print(step, flush=True)
"""


@pytest.mark.parametrize("steps", [2, 5])
def test_kill_9_during_a_write_loses_at_most_that_checkpoint(tmp_path: Path, steps: int) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _ENDLESS_WRITER, str(tmp_path)],
        stdout=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    ) as process:
        assert process.stdout is not None
        for _ in range(steps):
            begun = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        # It may have begun further ones until the signal came.
        begun = max([begun, *(int(line) for line in process.stdout)])
    found = latest_checkpoint(tmp_path)
    assert found is not None
    state, _ = read_checkpoint(found)
    assert state.global_step >= begun - 1
    assert torch.load(found / "learner.pt")["w"].numel() == 1 << 20


@pytest.mark.parametrize("content", ["", "{}", '{"format": 2, "state": {"entry": 1}}', "[]", '{"format": 1}'])
def test_a_damaged_checkpoint_is_an_error_in_one_line(tmp_path: Path, content: str) -> None:
    folder = write(tmp_path, RunState())
    (folder / "state.json").write_text(content)
    with pytest.raises(UserInputError, match="can be read"):
        read_checkpoint(folder)


def test_a_cut_file_is_noticed(tmp_path: Path) -> None:
    folder = write(tmp_path, RunState())
    file = folder / "learner.pt"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(UserInputError, match=r"learner\.pt has \d+ bytes instead of \d+"):
        read_checkpoint(folder)


def test_files_of_several_ranks_are_all_part_of_it(tmp_path: Path) -> None:
    class Ranks:
        def begin_save(self, folder: Path) -> Callable[[], None]:
            def write() -> None:
                for rank in range(2):
                    (folder / "ranks").mkdir(exist_ok=True)
                    (folder / "ranks" / f"{rank}.pt").write_bytes(b"x" * (rank + 1))

            return write

    folder = begin_checkpoint(tmp_path, RunState(), IDENTITY, Ranks(), 1)()
    assert json.loads((folder / "state.json").read_text())["files"] == {"ranks/0.pt": 1, "ranks/1.pt": 2}
    (folder / "ranks" / "1.pt").unlink()
    with pytest.raises(UserInputError, match="can be read"):
        read_checkpoint(folder)


def test_without_a_checkpoint_there_is_none(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path) is None
