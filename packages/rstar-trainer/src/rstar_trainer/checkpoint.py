"""Checkpoints: the whole state of a run after a step, written so that a crash never hurts the last good one.

A checkpoint is a folder `checkpoints/step-000012` with `state.json` (where the run is) and `learner.pt` (parameters,
optimizer, random numbers). It is written beside and renamed into place when complete.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch

from rstar_protos.errors import UserInputError

__all__ = ["CHECKPOINTS", "RunState", "latest_checkpoint", "read_checkpoint", "write_checkpoint"]

CHECKPOINTS = "checkpoints"
_STATE, _LEARNER, _PARTIAL = "state.json", "learner.pt", ".partial"


@dataclass
class RunState:
    """Where a run is.

    Attributes:
        entry: index into `Recipe.entries` of the stage under way; its evaluation follows its last step.
        step: steps done in that stage.
        global_step: SFT and RL steps done in the whole run.
        updates: changes of the policy so far; the weight version of the policy is `updates + 1`.
        tokens: tokens that went through training so far.
        fingerprint: SHA-256 of the training problems.
        samplers: state of the sampler of each pool of problems ("all", or the name of a stage on hard problems).
        hard_problems: ids that the offline filter left, by stage.
        log_position: records of the metrics log at that time.
        seconds: wall time spent in each entry so far.
    """

    entry: int = 0
    step: int = 0
    global_step: int = 0
    updates: int = 0
    tokens: int = 0
    fingerprint: str = ""
    samplers: dict[str, Any] = field(default_factory=dict)
    hard_problems: dict[str, list[str]] = field(default_factory=dict)
    log_position: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def weight_version(self) -> int:
        """Version under which engines know the policy of this state."""
        return self.updates + 1


def write_checkpoint(run_dir: Path, state: RunState, learner: Mapping[str, Any], keep: int) -> Path:
    """Writes a checkpoint and removes all but the newest `keep`.

    Args:
        run_dir: of the run.
        state: where the run is.
        learner: from `Learner.state_dict`.
        keep: at least 1.

    Returns:
        The folder of the checkpoint.
    """
    folder = run_dir / CHECKPOINTS / f"step-{state.global_step:06d}"
    partial = folder.with_name(folder.name + _PARTIAL)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    torch.save(learner, partial / _LEARNER)
    (partial / _STATE).write_text(json.dumps(asdict(state), indent=1), encoding="utf-8")
    for name in (_LEARNER, _STATE):
        _flush(partial / name)
    # Rewriting the checkpoint of the same step: the old one goes only when the new one is complete.
    shutil.rmtree(folder, ignore_errors=True)
    partial.rename(folder)
    _flush(folder.parent)
    for old in _folders(run_dir)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return folder


def latest_checkpoint(run_dir: Path) -> Path | None:
    """The newest complete checkpoint of a run, None when there is none yet."""
    folders = _folders(run_dir)
    return folders[-1] if folders else None


def read_checkpoint(folder: Path) -> tuple[RunState, dict[str, Any]]:
    """State and learner state of a checkpoint.

    Raises:
        UserInputError: the folder is not a checkpoint of this version.
    """
    try:
        values = json.loads((folder / _STATE).read_text(encoding="utf-8"))
        known = {item.name for item in fields(RunState)}
        if set(values) != known:
            raise ValueError(f"fields {sorted(set(values) ^ known)} do not match")
        learner: dict[str, Any] = torch.load(folder / _LEARNER, map_location="cpu", weights_only=True)
    except (OSError, ValueError, RuntimeError) as error:
        raise UserInputError("checkpoint", str(folder), f"it cannot be read ({error})") from error
    return RunState(**values), learner


def _folders(run_dir: Path) -> list[Path]:
    found = (run_dir / CHECKPOINTS).glob("step-*")
    return sorted(path for path in found if path.suffix != _PARTIAL and (path / _STATE).is_file())


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
