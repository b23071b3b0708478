"""The trajectories of a step in the run folder: one compressed JSONL file, rollouts with verdict and decision."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rstar_model.trajectory import to_json_dict
from rstar_trainer.scored_group import ScoredGroup

__all__ = ["trajectory_file", "write_trajectories"]


def trajectory_file(run_dir: Path, stage: str, step: int) -> Path:
    """Where the trajectories of a step lie; steps count from 1."""
    return run_dir / "trajectories" / stage / f"step-{step:04d}.jsonl.gz"


def write_trajectories(path: Path, groups: Iterable[ScoredGroup]) -> None:
    """Writes a step's file whole or not at all; a step that a resume does again replaces its file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    with gzip.open(partial, "wt", encoding="utf-8", compresslevel=3) as file:
        for group in groups:
            file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in _records(group))
    partial.replace(path)


def _records(group: ScoredGroup) -> list[dict[str, Any]]:
    decisions = {d.trajectory_id: d for d in group.resampled.decisions} if group.resampled else {}
    records = []
    for index, trajectory in sorted(group.trajectories.items()):
        verdict, decision = group.verdicts[index], decisions.get(trajectory.trajectory_id)
        records.append(
            {
                **to_json_dict(trajectory),
                "gold": group.problem.answer,
                "status": verdict.status,
                "reward": verdict.reward,
                "extracted": verdict.extracted,
                "kept": decision.kept if decision else False,
                "decision": decision.reason.value if decision else None,
                "p_err": decision.p_err if decision else None,
                "p_format": decision.p_format if decision else None,
            }
        )
    return records
