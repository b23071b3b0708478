"""What every part of a run shares: its recipe, data, folder, log, report, and the people watching."""

from __future__ import annotations

from dataclasses import dataclass

from rstar_trainer.data import HeldoutProblems, TrainProblem
from rstar_trainer.metrics_log import MetricsLog
from rstar_trainer.progress import Progress
from rstar_trainer.recipe import Recipe
from rstar_trainer.report import RunReport
from rstar_trainer.run_folder import RunFolder
from rstar_trainer.service import RunControl

__all__ = ["RunContext"]


@dataclass(frozen=True)
class RunContext:
    """One run.

    Attributes:
        recipe: what is done.
        folder: where everything is written.
        problems: training problems.
        heldout: problems that are only measured on.
        log: metrics and events.
        report: `report.json`.
        progress: what people see.
        control: what the TrainerService shows and is asked for.
    """

    recipe: Recipe
    folder: RunFolder
    problems: list[TrainProblem]
    heldout: HeldoutProblems
    log: MetricsLog
    report: RunReport
    progress: Progress
    control: RunControl

    def event(self, text: str) -> None:
        """Tells people something and keeps it in the log."""
        self.progress.message(text)
        self.log.log("event", global_step=self.control.global_step, stage=self.control.stage, text=text)

    def show_phase(self, text: str, done: int, total: int) -> None:
        """Tells people and the TrainerService what is going on."""
        self.control.phase = text
        self.progress.phase(text, done, total)
