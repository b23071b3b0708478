"""Progress of an evaluation: a bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

from rstar_eval.sample import SampleRecord

__all__ = ["EvaluationProgress"]

_PLAIN_SECONDS = 10.0


class EvaluationProgress:
    """Shows how many samples are scored and how it goes. A context manager; give `add` to `evaluate`.

    Args:
        total: samples that will come.
        console: where to show it.
        done: samples that are there already.
    """

    def __init__(self, total: int, console: Console, *, done: int = 0) -> None:
        self._total = total
        self._console = console
        self._done = min(done, total)
        self._correct = self._scored = self._calls = self._failed = 0
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._last_line = time.monotonic()

    def __enter__(self) -> EvaluationProgress:
        if self._console.is_terminal:
            columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=self._console)
            self._task = self._bar.add_task("evaluating", total=self._total, completed=self._done)
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def add(self, record: SampleRecord) -> None:
        """Counts one new sample."""
        self._done += 0 if record.lost else 1
        self._scored += record.scored
        self._correct += record.correct
        self._calls += record.tool_calls
        self._failed += record.failed_tool_calls
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=self._done, description=self._line())
        elif time.monotonic() - self._last_line >= _PLAIN_SECONDS:
            self._last_line = time.monotonic()
            self._console.print(f"{self._done}/{self._total} {self._line()}", highlight=False)

    def _line(self) -> str:
        score = f"{self._correct / self._scored:.3f}" if self._scored else "-"
        errors = f"{self._failed / self._calls:.1%}" if self._calls else "-"
        return f"pass@1 {score}, tool errors {errors}"
