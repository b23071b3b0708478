"""`report.json` of a run: one entry per evaluation (base, sft, then the stages) and where the results lie.

The file is rewritten in one piece after each entry, so a run that ends early leaves a whole report
of what it did, and a resumed run goes on with it.
"""

import json
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from rstar_eval.report import Report
from rstar_trainer.recipe import Recipe

__all__ = ["REPORT_FILE", "RunReport", "stage_entry"]

REPORT_FILE = "report.json"


def stage_entry(
    name: str, report: Report, *, steps: int, rl_steps: int, unseen: Mapping[str, Report] | None = None
) -> dict[str, Any]:
    """One entry of `report.json`.

    Args:
        name: "base", "sft" or the name of a stage.
        report: its evaluation on held-out problems.
        steps: steps of this stage (0 for base).
        rl_steps: RL steps of all stages so far, as the paper's table counts.
        unseen: by tag, evaluations on kinds of problems that training never shows.

    Returns:
        `name`, `steps`, `rl_steps`, and what the evaluation found: `pass_at_1`, `ci95`, `problems`,
        `samples`, `temperature`, shares and means, results by tag.
    """
    found = report.to_json_dict()
    entry = {"name": name, "steps": steps, "rl_steps": rl_steps}
    entry.update({key: value for key, value in found.items() if key != "name"})
    if unseen:
        entry["unseen"] = {tag: part.overall.to_json_dict() for tag, part in unseen.items()}
    return entry


class RunReport:
    """The report of one run, kept in `report.json` in its folder.

    Args:
        run_dir: the run folder; created when missing.
        values: the content so far.
    """

    def __init__(self, run_dir: Path, values: Mapping[str, Any]) -> None:
        self._run_dir = run_dir
        self._values: dict[str, Any] = {"stages": [], **values}
        run_dir.mkdir(parents=True, exist_ok=True)

    @classmethod
    def start(cls, run_dir: Path, recipe: Recipe) -> Self:
        """An empty report of a new run."""
        return cls(run_dir, {"recipe": recipe.name, "seed": recipe.seed, "run_dir": str(run_dir)})

    @classmethod
    def read(cls, run_dir: Path) -> Self:
        """The report that a run has written so far.

        Raises:
            FileNotFoundError: it has written none.
        """
        return cls(run_dir, json.loads((run_dir / REPORT_FILE).read_text(encoding="utf-8")))

    @property
    def run_dir(self) -> Path:
        """The run folder."""
        return self._run_dir

    @property
    def values(self) -> Mapping[str, Any]:
        """The content, as in the file."""
        return self._values

    @property
    def stages(self) -> tuple[Mapping[str, Any], ...]:
        """The entries, in order."""
        return tuple(self._values["stages"])

    def entry(self, name: str) -> Mapping[str, Any] | None:
        """The entry of that name, if it is there."""
        return next((entry for entry in self.stages if entry["name"] == name), None)

    def add_entry(self, entry: Mapping[str, Any]) -> None:
        """Adds an entry, or replaces the one of the same name, and writes the file."""
        entries = self._values["stages"]
        for position, present in enumerate(entries):
            if present["name"] == entry["name"]:
                entries[position] = dict(entry)
                break
        else:
            entries.append(dict(entry))
        self.write()

    def keep_entries(self, names: Iterable[str]) -> None:
        """Drops all other entries: those that a resumed run will make again. Writes the file."""
        kept = set(names)
        self._values["stages"] = [entry for entry in self._values["stages"] if entry["name"] in kept]
        self.write()

    def set(self, **values: Any) -> None:
        """Sets fields beside the entries (`model`, `checkpoint`, `tool_disabled`, ...) and writes the file."""
        self._values.update(values)
        self.write()

    def set_checkpoint(self, folder: Path) -> None:
        """Records the Hugging Face folder of the final policy and the command that talks to it."""
        self.set(checkpoint=str(folder), chat_command=f"rstar-rollout chat --model {shlex.quote(str(folder))}")

    def write(self) -> None:
        """Replaces `report.json` in one step."""
        path = self._run_dir / REPORT_FILE
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(self._values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        partial.replace(path)
