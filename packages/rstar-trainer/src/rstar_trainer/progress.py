"""What a run shows while it goes: bars and current figures on a terminal, plain lines elsewhere.

The pipeline calls, in any order:

    with Progress() as progress:
        progress.message("fetching weights")
        progress.stage("rl-1", total_steps=4)
        progress.phase("rollout", done=3, total=48)
        progress.step({"reward": 0.4, "tool_error_share": 0.1, ...})
        progress.evaluation({"name": "rl-1", "pass_at_1": 0.61, "ci95": [0.52, 0.69], ...})

Figures that `step` shows are listed in `SHOWN_METRICS`; others are ignored.
"""

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.table import Table

__all__ = ["SHOWN_METRICS", "Progress"]

# Metric name -> (heading, format).
SHOWN_METRICS: Mapping[str, tuple[str, str]] = {
    "reward": ("reward", ".2f"),
    "pass_at_1": ("pass@1", ".2f"),
    "tool_error_share": ("tool errors", ".0%"),
    "truncation_share": ("truncated", ".0%"),
    "response_tokens": ("tokens/response", ".0f"),
    "groups_kept": ("groups kept", ".0f"),
    "groups_rejected": ("rejected", ".0f"),
    "rollout_tokens_per_second": ("rollout tok/s", ".0f"),
    "train_tokens_per_second": ("train tok/s", ".0f"),
    "loss": ("loss", ".4f"),
    "grad_norm": ("grad norm", ".2f"),
}

# Without a terminal a phase is told again after so many seconds.
_PLAIN_SECONDS = 30.0


class Progress:
    """Shows a run's progress; a context manager.

    Args:
        console: where to; standard error by default, so that standard output stays clean.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True)
        self._bars = Bars(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._console,
        )
        self._live: Live | None = None
        self._stage = ""
        self._stage_steps = 0
        self._stage_done = 0
        self._stage_task: Any = None
        self._phase = ""
        self._phase_task: Any = None
        self._phase_told = 0.0
        self._figures: list[str] = []
        self._evaluations: list[str] = []

    @property
    def console(self) -> Console:
        """The console that everything is shown on."""
        return self._console

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live = Live(get_renderable=self._render, console=self._console, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def message(self, text: str) -> None:
        """Prints one line that stays."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def stage(self, name: str, total_steps: int, done: int = 0) -> None:
        """A stage begins ("sft", "rl-1", ...); `done` of its steps lie before a resume."""
        self._end_phase()
        if self._stage_task is not None:
            self._bars.stop_task(self._stage_task)
        self._stage, self._stage_steps, self._stage_done = name, total_steps, done
        self._stage_task = self._bars.add_task(name, total=total_steps, completed=done)
        self._figures = []
        self.message(f"{name}: {total_steps} steps" + (f", {done} done before" if done else ""))

    def phase(self, text: str, done: int, total: int) -> None:
        """Something within a step goes on: `done` of `total` (0: unknown)."""
        if text != self._phase:
            self._end_phase()
            self._phase = text
            self._phase_told = time.monotonic()
            self._phase_task = self._bars.add_task(f"  {text}", total=total or None)
        self._bars.update(self._phase_task, completed=done, total=total or None)
        if self._live is None and time.monotonic() - self._phase_told >= _PLAIN_SECONDS:
            self._phase_told = time.monotonic()
            self.message(f"{self._stage} {text}: {done}/{total or '?'}".strip())

    def step(self, metrics: Mapping[str, Any]) -> None:
        """A step of the current stage is done."""
        self._end_phase()
        self._stage_done += 1
        if self._stage_task is not None:
            self._bars.update(self._stage_task, completed=self._stage_done)
        self._figures = [
            f"{heading} {_number(metrics[name], form)}"
            for name, (heading, form) in SHOWN_METRICS.items()
            if metrics.get(name) is not None
        ]
        self.message(f"{self._stage} {self._stage_done}/{self._stage_steps}: " + ", ".join(self._figures))

    def evaluation(self, entry: Mapping[str, Any]) -> None:
        """An evaluation is done; `entry` as in `report.json`."""
        self._end_phase()
        line = f"{entry.get('name', '?')}: pass@1 {_number(entry.get('pass_at_1'), '.3f')}"
        interval = entry.get("ci95")
        if interval:
            line += f" [{_number(interval[0], '.3f')}, {_number(interval[1], '.3f')}]"
        details = [f"{entry[name]} {name}" for name in ("problems", "samples") if entry.get(name) is not None]
        self._evaluations.append(line)
        self.message(f"evaluation {line}" + (f" ({', '.join(details)})" if details else ""))

    def _end_phase(self) -> None:
        if self._phase_task is not None:
            self._bars.remove_task(self._phase_task)
        self._phase, self._phase_task = "", None

    def _render(self) -> RenderableType:
        figures = Table.grid(padding=(0, 2))
        if self._figures:
            # Two rows of figures fit a narrow terminal.
            half = (len(self._figures) + 1) // 2
            figures.add_row(*self._figures[:half])
            figures.add_row(*self._figures[half:])
        evaluations = Table.grid(padding=(0, 2))
        if self._evaluations:
            evaluations.add_row("held-out", *self._evaluations[-3:])
        return Group(self._bars, figures, evaluations)


def _number(value: Any, form: str) -> str:
    return "-" if value is None else format(float(value), form)
