"""Puts the results of a finished run together: curves, sample trajectories, report fields, end table."""

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from rstar_eval.sample import SampleRecord
from rstar_trainer.curves import CURVES_FILE, draw_curves
from rstar_trainer.data import TrainProblem
from rstar_trainer.metrics_log import METRICS_FILE, TENSORBOARD_FOLDER, MetricsLog
from rstar_trainer.report import RunReport
from rstar_trainer.samples import SAMPLES_FILE, compare_samples, print_samples, write_samples
from rstar_trainer.summary import print_summary

__all__ = ["finish_report"]


def finish_report(
    report: RunReport,
    *,
    log: MetricsLog,
    problems: Sequence[TrainProblem],
    before: Sequence[SampleRecord],
    after: Sequence[SampleRecord],
    before_name: str,
    after_name: str,
    checkpoint: Path,
    console: Console,
) -> None:
    """Writes `curves.png` and `samples.md`, completes `report.json` and prints the end of the run.

    Args:
        report: with all its entries.
        log: the run's metrics.
        problems: the held-out problems that the samples belong to.
        before: samples of an early evaluation, with their trajectories as text.
        after: samples of the last one.
        before_name: entry that `before` belongs to.
        after_name: entry that `after` belongs to.
        checkpoint: Hugging Face folder of the final policy.
        console: where to print.
    """
    folder = report.run_dir
    draw_curves(log.records, report.stages, folder / CURVES_FILE)
    samples = compare_samples(problems, before, after)
    write_samples(folder / SAMPLES_FILE, samples, before_name=before_name, after_name=after_name)
    report.set_checkpoint(checkpoint)
    report.set(
        curves=str(folder / CURVES_FILE),
        samples=str(folder / SAMPLES_FILE),
        metrics=str(folder / METRICS_FILE),
        tensorboard=str(folder / TENSORBOARD_FOLDER),
    )
    print_samples(console, samples, before_name=before_name, after_name=after_name)
    print_summary(report, console)
