"""Checkpoints: the whole state of a run after a step, written so that a crash never hurts the last good one.

A checkpoint is a folder `checkpoints/step-000012` with `state.json` (where the run is, what it is a run of, and the
size of every other file) and the learner's own files: `learner.pt`, or one set of files for each rank. It is written
beside, flushed to the disk and renamed into place when complete. What is saved is copied at once; the writing itself
happens in a thread while training goes on.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from rstar_protos.errors import InfrastructureError, UserInputError
from rstar_trainer.run_identity import RunIdentity

__all__ = [
    "CHECKPOINTS",
    "CheckpointWriter",
    "RunState",
    "SavesState",
    "begin_checkpoint",
    "latest_checkpoint",
    "read_checkpoint",
]

CHECKPOINTS = "checkpoints"
_STATE, _PARTIAL, _REPLACED = "state.json", ".partial", ".replaced"
_FORMAT = 2


@dataclass
class RunState:
    """Where a run is.

    Attributes:
        entry: index into `Recipe.entries` of the stage under way; its evaluation follows its last step.
        step: steps done in that stage.
        global_step: SFT and RL steps done in the whole run.
        updates: changes of the policy so far; the weight version of the policy is `updates + 1`.
        tokens: tokens that went through training so far.
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
    samplers: dict[str, Any] = field(default_factory=dict)
    hard_problems: dict[str, list[str]] = field(default_factory=dict)
    log_position: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def weight_version(self) -> int:
        """Version under which engines know the policy of this state."""
        return self.updates + 1

    def forget_data(self) -> None:
        """Starts over with the problems: the explicit reset when other data is accepted."""
        self.samplers.clear()
        self.hard_problems.clear()


class SavesState(Protocol):
    """The part of a learner that checkpoints need."""

    def begin_save(self, folder: Path) -> Callable[[], None]:
        """Copies the state as it is now; what is returned writes it into the folder, in any thread."""


def begin_checkpoint(
    run_dir: Path, state: RunState, identity: RunIdentity, learner: SavesState, keep: int
) -> Callable[[], Path]:
    """Copies everything that a checkpoint holds.

    Args:
        run_dir: of the run.
        state: where the run is.
        identity: what it is a run of.
        learner: whose state is saved.
        keep: complete checkpoints that are left, at least 1; older ones are removed once this one is complete.

    Returns:
        What writes it and returns its folder; may be called in another thread while training goes on.
    """
    folder = run_dir / CHECKPOINTS / f"step-{state.global_step:06d}"
    partial = folder.with_name(folder.name + _PARTIAL)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    record = {"format": _FORMAT, "state": asdict(state), "identity": identity.to_json_dict()}
    # A copy: the run goes on changing its state.
    record = json.loads(json.dumps(record))
    write_learner = learner.begin_save(partial)

    def write() -> Path:
        write_learner()
        files = sorted(path for path in partial.rglob("*") if path.is_file())
        record["files"] = {path.relative_to(partial).as_posix(): path.stat().st_size for path in files}
        (partial / _STATE).write_text(json.dumps(record, indent=1), encoding="utf-8")
        for path in [*files, partial / _STATE]:
            _flush(path)
        _flush(partial)
        _put_in_place(partial, folder)
        for old in _folders(run_dir)[:-keep]:
            shutil.rmtree(old, ignore_errors=True)
        return folder

    return write


class CheckpointWriter:
    """Writes checkpoints one after another in a thread of its own; a context manager that waits for the last.

    Args:
        run_dir: of the run.
        identity: what it is a run of.
        keep: complete checkpoints that are left.
    """

    def __init__(self, run_dir: Path, identity: RunIdentity, keep: int) -> None:
        self._run_dir, self._identity, self._keep = run_dir, identity, keep
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending: Future[Path] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown(wait=True)
        if error is None:
            self.wait()

    def begin(self, state: RunState, learner: SavesState) -> None:
        """Copies the state and returns; waits first for the checkpoint before, so that one copy exists at a time.

        Raises:
            InfrastructureError: the checkpoint before could not be written.
        """
        self.wait()
        write = begin_checkpoint(self._run_dir, state, self._identity, learner, self._keep)
        self._pending = self._thread.submit(write)

    def wait(self) -> None:
        """Returns when the last checkpoint is complete.

        Raises:
            InfrastructureError: it could not be written.
        """
        pending, self._pending = self._pending, None
        if pending is None:
            return
        try:
            pending.result()
        except (OSError, RuntimeError) as error:  # torch reports a full disk as RuntimeError
            raise InfrastructureError(f"a checkpoint could not be written below {self._run_dir}: {error}") from error


def latest_checkpoint(run_dir: Path) -> Path | None:
    """The newest complete checkpoint of a run, None when there is none yet."""
    folders = _folders(run_dir)
    return folders[-1] if folders else None


def read_checkpoint(folder: Path) -> tuple[RunState, RunIdentity]:
    """Where the run was and what it is a run of; the learner reads its own files.

    Raises:
        UserInputError: the folder is not a checkpoint of this version, or a file of it is missing or cut.
    """
    try:
        record = json.loads((folder / _STATE).read_text(encoding="utf-8"))
        if record.get("format") != _FORMAT:
            raise ValueError(f"its format is {record.get('format')}, this version reads {_FORMAT}")
        values, known = record["state"], {item.name for item in fields(RunState)}
        if set(values) != known:
            raise ValueError(f"fields {sorted(set(values) ^ known)} do not match")
        for name, size in record["files"].items():
            found = (folder / name).stat().st_size
            if found != size:
                raise ValueError(f"{name} has {found} bytes instead of {size}")
        return RunState(**values), RunIdentity.from_json_dict(record["identity"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserInputError("checkpoint", str(folder), f"a folder that can be read ({error})") from error


def _folders(run_dir: Path) -> list[Path]:
    """Complete checkpoints by step; one that was being replaced when the trainer was killed counts too."""
    found: dict[str, Path] = {}
    for path in sorted((run_dir / CHECKPOINTS).glob("step-*")):
        if path.suffix != _PARTIAL and (path / _STATE).is_file():
            found.setdefault(path.name.removesuffix(_REPLACED), path)
    return [found[name] for name in sorted(found)]


def _put_in_place(partial: Path, folder: Path) -> None:
    """Renames a complete folder; another of the same step steps aside first and goes when the new one is there."""
    replaced = folder.with_name(folder.name + _REPLACED)
    if folder.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        folder.rename(replaced)
    partial.rename(folder)
    _flush(folder.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
