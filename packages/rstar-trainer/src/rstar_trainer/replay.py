"""An update again, from what a run has stored: its trajectories and its checkpoints.

With an engine that is not deterministic a resumed run meets other rollouts, but the update itself must not differ: the
same stored trajectories and the same checkpoint give the same weights, bit for bit.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

from rstar_model.trajectory import Trajectory, from_json_dict
from rstar_protos.errors import UserInputError
from rstar_trainer.recipe import Stage
from rstar_trainer.sequences import WeightedSequence
from rstar_trainer.training_sequences import weighted_sequences
from rstar_trainer.trajectory_file import trajectory_file

__all__ = ["stored_sequences"]


def stored_sequences(run_dir: Path, stage: Stage, step: int) -> list[WeightedSequence]:
    """What the update of a step was made from, in the same order.

    Args:
        run_dir: of the run.
        stage: of the run's recipe; its loss says how advantages are normalised.
        step: of the stage, from 1.

    Raises:
        UserInputError: there is no such step, or its file is damaged.
    """
    path = trajectory_file(run_dir, stage.name, step)
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            records: list[dict[str, Any]] = [json.loads(line) for line in file]
    except (OSError, EOFError, ValueError) as error:
        raise UserInputError("trajectories", str(path), f"trajectories of a step ({error})") from error
    groups: dict[str, list[tuple[Trajectory, float]]] = {}
    for record in records:
        kept = groups.setdefault(record["group_id"], [])
        if record["kept"] and record["reward"] is not None:
            kept.append((from_json_dict(record), float(record["reward"])))
    # Equal rewards teach nothing: such groups were rejected and counted in no denominator.
    accepted = [kept for kept in groups.values() if len({reward for _, reward in kept}) > 1]
    return weighted_sequences(accepted, stage)
