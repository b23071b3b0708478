"""`rstar-rollout generate`: problems as JSON lines in, trajectories as JSON lines out."""

from __future__ import annotations

import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from rstar_model.trajectory import Trajectory, write_trajectories
from rstar_protos.errors import UserInputError
from rstar_protos.jsonl import read_rows
from rstar_rollout.limits import ProblemRequest, RolloutLimits, SamplingSettings, ToolSettings
from rstar_rollout.serving import RolloutOptions, RolloutParts

__all__ = ["GenerateJob", "generate", "read_problems"]

_PLAIN_SECONDS = 10.0


@dataclass(frozen=True)
class GenerateJob:
    """What to generate and where to put it."""

    problems: Path
    out: Path
    samples: int
    sampling: SamplingSettings
    limits: RolloutLimits
    tools: ToolSettings
    overwrite: bool = False


def read_problems(path: Path, samples: int) -> list[ProblemRequest]:
    """Problems of a JSONL file: ``problem`` (or ``prompt``) and optionally ``problem_id`` (or ``id``).

    Raises:
        UserInputError: naming the line that cannot be used.
    """
    if samples < 1:
        raise UserInputError("--samples", samples, "a whole number from 1")
    if not path.is_file():
        raise UserInputError("--problems", str(path), "an existing JSONL file")
    problems: list[ProblemRequest] = []
    seen: set[str] = set()
    accepted = 'JSON objects with a "problem" text, one a line'
    for number, where, record in read_rows(path, "--problems"):
        text = record.get("problem", record.get("prompt"))
        if not isinstance(text, str) or not text:
            raise UserInputError(where, text, accepted)
        given = record.get("problem_id", record.get("id"))
        problem_id = str(given) if given is not None else f"{path.stem}-{number}"
        if problem_id in seen:
            raise UserInputError(where, problem_id, "ids that appear once")
        seen.add(problem_id)
        problems.append(ProblemRequest(problem_id, problem_id, text, samples))
    if not problems:
        raise UserInputError("--problems", str(path), accepted)
    return problems


async def generate(options: RolloutOptions, job: GenerateJob) -> None:
    """Run the job; every trajectory is written as soon as it is finished.

    Raises:
        UserInputError: unusable problems or options, or an output file that exists.
    """
    problems = read_problems(job.problems, job.samples)
    if job.out.exists() and not job.overwrite:
        raise UserInputError("--out", str(job.out), "a file that does not exist yet, or any with --overwrite")
    parts = RolloutParts(options)
    job.out.parent.mkdir(parents=True, exist_ok=True)
    job.out.write_text("", encoding="utf-8")
    try:
        loop = await parts.start()
        batch = loop.batch(problems, job.sampling, job.limits, job.tools)
        with _Meter(len(batch)) as meter:
            async for trajectory in batch:
                write_trajectories(job.out, [trajectory], append=True)
                meter.add(trajectory)
    finally:
        await parts.stop()


class _Meter:
    """A progress bar on a terminal, a plain line now and then elsewhere, a summary in the end; all on stderr."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._ends: Counter[str] = Counter()
        self._tokens = 0
        self._started = self._told = time.monotonic()
        self._console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("rollouts"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]:.0f} tok/s"),
            TimeRemainingColumn(),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task("rollouts", total=total, rate=0.0)

    def __enter__(self) -> _Meter:
        self._bar.start()
        return self

    def add(self, trajectory: Trajectory) -> None:
        """Count a finished trajectory."""
        self._ends[trajectory.end_reason.value] += 1
        self._tokens += trajectory.policy_tokens
        self._bar.update(self._task, advance=1, rate=self._rate)
        now = time.monotonic()
        if not self._console.is_terminal and now - self._told > _PLAIN_SECONDS:
            self._told = now
            done = sum(self._ends.values())
            print(f"{done}/{self._total} rollouts, {self._rate:.0f} tokens/s", file=sys.stderr)

    @property
    def _rate(self) -> float:
        return self._tokens / max(time.monotonic() - self._started, 1e-9)

    def __exit__(self, *_: object) -> None:
        self._bar.stop()
        ends = ", ".join(f"{count} {reason}" for reason, count in sorted(self._ends.items()))
        print(
            f"{sum(self._ends.values())}/{self._total} rollouts ({ends or 'none'}), {self._tokens} policy tokens, "
            f"{self._rate:.0f} tokens/s",
            file=sys.stderr,
        )
