"""What an evaluation was asked for, stored beside its samples so that it can be reported and resumed apart."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rstar_eval.problems import EvalProblem
from rstar_eval.report import Report
from rstar_eval.sample_log import read_samples
from rstar_eval.settings import EvalSettings
from rstar_protos.errors import UserInputError

__all__ = ["DESCRIPTION_FILE", "REPORT_FILE", "SAMPLES_FILE", "Description", "load_report", "merge_problems"]

DESCRIPTION_FILE = "evaluation.json"
SAMPLES_FILE = "samples.jsonl"
REPORT_FILE = "report.json"


@dataclass(frozen=True)
class Description:
    """Name, policy, settings and problems of an evaluation."""

    name: str
    policy: str
    settings: EvalSettings
    problems: tuple[EvalProblem, ...]
    files: tuple[str, ...] = ()
    """Where the problems were read from."""

    def write(self, folder: Path) -> None:
        """Writes `evaluation.json` into a folder, which is made when absent."""
        folder.mkdir(parents=True, exist_ok=True)
        values = {
            "name": self.name,
            "policy": self.policy,
            "settings": self.settings.to_json_dict(),
            "files": list(self.files),
            "problems": [
                {"id": item.problem_id, "problem": item.problem, "answer": item.answer, "tags": list(item.tags)}
                for item in self.problems
            ],
        }
        path = folder / DESCRIPTION_FILE
        partial = path.with_name(path.name + ".part")
        partial.write_text(json.dumps(values, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        partial.replace(path)

    @classmethod
    def read(cls, folder: Path) -> Description:
        """Reads `evaluation.json` of a folder.

        Raises:
            UserInputError: there is none, or it is not one of ours.
        """
        path = folder / DESCRIPTION_FILE
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            return cls(
                values["name"],
                values["policy"],
                EvalSettings.from_json_dict(values["settings"]),
                tuple(
                    EvalProblem(item["id"], item["problem"], item["answer"], tuple(item["tags"]))
                    for item in values["problems"]
                ),
                tuple(values["files"]),
            )
        except OSError:
            raise UserInputError("evaluation", str(folder), "a folder written by rstar-eval run") from None
        except (ValueError, KeyError, TypeError) as error:
            raise UserInputError.message(f"{path}: not the description of an evaluation ({error!r})") from None


def load_report(folder: Path) -> Report:
    """Makes the report of a stored evaluation again from its samples.

    Raises:
        UserInputError: the folder holds no evaluation, or a damaged one.
    """
    description = Description.read(folder)
    return Report.of(
        read_samples(folder / SAMPLES_FILE),
        description.settings,
        problems=description.problems,
        name=description.name,
        policy=description.policy,
    )


def merge_problems(parts: Sequence[Sequence[EvalProblem]]) -> list[EvalProblem]:
    """Problems of several files as one list.

    Raises:
        UserInputError: two files use one id.
    """
    merged: dict[str, EvalProblem] = {}
    for problem in (item for part in parts for item in part):
        if problem.problem_id in merged:
            raise UserInputError("problems", problem.problem_id, "an id that is not in another file too")
        merged[problem.problem_id] = problem
    return list(merged.values())
