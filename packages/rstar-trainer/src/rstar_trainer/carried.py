"""Groups that a step has begun and the next one goes on with, in the run folder, so that a resume finds them too.

After every step of a stage with partial rollouts a file says what is under way then. A resumed run reads the file of
the step that its checkpoint was written after, so it goes on with the very groups that the killed run would have gone
on with. What cannot be read, or belongs to a problem that the data no longer has, is dropped and told; it is never
mixed into another problem's group.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rstar_eval.scoring import Verdict
from rstar_model.trajectory import from_json_dict, to_json_dict
from rstar_protos.errors import UserInputError
from rstar_trainer.data import TrainProblem
from rstar_trainer.recipe import CheckpointSettings, Stage
from rstar_trainer.scored_group import ScoredGroup

__all__ = ["CarriedGroups", "Found", "partial_figures"]

_FOLDER = "carried"


@dataclass(frozen=True)
class Found:
    """What a step can go on with, and in words what it cannot."""

    groups: list[ScoredGroup]
    lost: str = ""


class CarriedGroups:
    """The files of one stage.

    Args:
        run_dir: of the run.
        stage: its settings.
        checkpoints: how far back a resume may go.
    """

    def __init__(self, run_dir: Path, stage: Stage, checkpoints: CheckpointSettings) -> None:
        self._folder = run_dir / _FOLDER / stage.name
        self._samples = stage.rollouts_per_problem
        # One more than are kept: the newest checkpoint may still be on its way to the disk.
        self._steps_back = (checkpoints.keep + 1) * checkpoints.every_steps

    def write(self, step: int, groups: Iterable[ScoredGroup]) -> None:
        """Keeps what is under way after a step, flushed to the disk; files that no checkpoint needs are removed.

        Args:
            step: steps done, 1 or more.
            groups: not complete.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._path(step)
        partial = path.with_name(path.name + ".partial")
        with partial.open("wb") as file:
            with gzip.open(file, "wt", encoding="utf-8", compresslevel=3) as text:
                text.writelines(json.dumps(_record(group), ensure_ascii=False) + "\n" for group in groups)
            os.fsync(file.fileno())
        partial.replace(path)
        for old in self._folder.glob("step-*.jsonl.gz"):
            if old < self._path(max(0, step - self._steps_back)):
                old.unlink()

    def read(self, step: int, problems: Iterable[TrainProblem]) -> Found:
        """What was under way after a step, each group one step older.

        Args:
            step: steps done.
            problems: the training problems as they are now.
        """
        known = {problem.problem_id: problem for problem in problems}
        path = self._path(step)
        try:
            with gzip.open(path, "rt", encoding="utf-8") as file:
                records = [json.loads(line) for line in file]
            groups = [_group(record, known.get(record["problem_id"])) for record in records]
        except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, UserInputError) as error:
            return Found([], f"the groups that were under way are dropped: {path} cannot be read ({error})")
        left = [group for group in groups if group is not None]
        gone = len(groups) - len(left)
        return Found(
            left, f"{gone} groups that were under way are dropped: their problems have changed" if gone else ""
        )

    def _path(self, step: int) -> Path:
        return self._folder / f"step-{step:06d}.jsonl.gz"


def partial_figures(groups: Sequence[ScoredGroup], left: Sequence[ScoredGroup], version: int) -> dict[str, float]:
    """What is logged of a step with partial rollouts.

    Args:
        groups: that are complete.
        left: that are not.
        version: weight version of the step.
    """
    ledgers = [trajectory.ledger for group in groups for trajectory in group.trajectories.values()]
    counts = [sum(len(s) for s in ledger.spans if s.weight_version not in (None, version)) for ledger in ledgers]
    return {
        "groups_carried": float(len(left)),
        "rollouts_stopped": float(sum(len(group.partial) for group in left)),
        "rollouts_off_policy": float(sum(count > 0 for count in counts)),
        "off_policy_token_share": sum(counts) / max(1, sum(ledger.policy_length for ledger in ledgers)),
    }


def _record(group: ScoredGroup) -> dict[str, Any]:
    return {
        "group_id": group.group_id,
        "problem_id": group.problem.problem_id,
        "text": group.problem.text,
        "answer": group.problem.answer,
        "carried": group.carried,
        "ended": [
            {"trajectory": to_json_dict(trajectory), "verdict": asdict(group.verdicts[index])}
            for index, trajectory in sorted(group.trajectories.items())
        ],
        "partial": [to_json_dict(trajectory) for _, trajectory in sorted(group.partial.items())],
    }


def _group(record: Mapping[str, Any], problem: TrainProblem | None) -> ScoredGroup | None:
    """The group of a record; None when its problem is another one now."""
    if problem is None or (problem.text, problem.answer) != (record["text"], record["answer"]):
        return None
    group = ScoredGroup(record["group_id"], problem, carried=record["carried"] + 1)
    for ended in record["ended"]:
        trajectory = from_json_dict(ended["trajectory"])
        group.trajectories[trajectory.sample_index] = trajectory
        group.verdicts[trajectory.sample_index] = Verdict(**ended["verdict"])
    group.partial = {t.sample_index: t for t in map(from_json_dict, record["partial"])}
    return group
