"""Checkpoints survive crashes and come back as they were."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from rstar_protos.errors import UserInputError
from rstar_trainer.checkpoint import RunState, latest_checkpoint, read_checkpoint, write_checkpoint

LEARNER = {"model": {"w": torch.arange(4.0)}, "optimizer": {"state": {}}, "torch_rng": torch.get_rng_state()}


def test_what_was_written_is_read(tmp_path: Path) -> None:
    state = RunState(entry=2, step=3, global_step=19, updates=18, hard_problems={"rl-3": ["a"]}, fingerprint="f")
    folder = write_checkpoint(tmp_path, state, LEARNER, keep=2)
    found, learner = read_checkpoint(folder)
    assert found == state
    assert torch.equal(learner["model"]["w"], LEARNER["model"]["w"])  # type: ignore[index]
    assert found.weight_version == 19


def test_the_newest_is_found_and_older_ones_go(tmp_path: Path) -> None:
    for step in (1, 2, 10):
        write_checkpoint(tmp_path, RunState(global_step=step), LEARNER, keep=2)
    assert [path.name for path in sorted((tmp_path / "checkpoints").iterdir())] == ["step-000002", "step-000010"]
    assert latest_checkpoint(tmp_path) == tmp_path / "checkpoints" / "step-000010"


def test_a_crash_while_writing_leaves_the_last_good_one(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, RunState(global_step=1), LEARNER, keep=3)
    # What a kill in the middle of the second one leaves behind.
    partial = tmp_path / "checkpoints" / "step-000002.partial"
    partial.mkdir()
    (partial / "learner.pt").write_bytes(b"half")
    assert latest_checkpoint(tmp_path) == tmp_path / "checkpoints" / "step-000001"
    write_checkpoint(tmp_path, RunState(global_step=2), LEARNER, keep=3)
    assert read_checkpoint(tmp_path / "checkpoints" / "step-000002")[0].global_step == 2


def test_the_same_step_can_be_written_again(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, RunState(global_step=1, tokens=1), LEARNER, keep=3)
    folder = write_checkpoint(tmp_path, RunState(global_step=1, tokens=2), LEARNER, keep=3)
    assert read_checkpoint(folder)[0].tokens == 2


@pytest.mark.parametrize("content", ["", "{}", '{"entry": 1}', "[]"])
def test_a_damaged_checkpoint_is_an_error_in_one_line(tmp_path: Path, content: str) -> None:
    folder = write_checkpoint(tmp_path, RunState(), LEARNER, keep=3)
    (folder / "state.json").write_text(content)
    with pytest.raises(UserInputError, match="cannot be read"):
        read_checkpoint(folder)


def test_without_a_checkpoint_there_is_none(tmp_path: Path) -> None:
    assert latest_checkpoint(tmp_path) is None
