"""Sample trajectories before and after training: a readable page in the run folder, and a short print.

The same problems are shown before and after: one of each kind of problem as long as there are
kinds left, and of each kind one that only the later policy solves, if there is one.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from rstar_eval.sample import SampleRecord
from rstar_trainer.data import TrainProblem

__all__ = ["SAMPLES_FILE", "SampleComparison", "compare_samples", "print_samples", "write_samples"]

SAMPLES_FILE = "samples.md"

_SPEAKERS = {"prompt": "prompt", "policy": "policy", "template": "template", "tool": "tool response"}
_STYLES = {"policy": "bold", "tool": "green", "template": "dim", "prompt": "dim"}
_PRINTED_CHARACTERS = 700


@dataclass(frozen=True)
class SampleComparison:
    """One problem with a rollout of the policy before and one of the policy after training."""

    problem: TrainProblem
    before: SampleRecord
    after: SampleRecord


def compare_samples(
    problems: Iterable[TrainProblem],
    before: Sequence[SampleRecord],
    after: Sequence[SampleRecord],
    *,
    count: int = 3,
) -> list[SampleComparison]:
    """Chooses problems that were rolled out both times, of different kinds and newly solved where possible.

    Args:
        problems: the held-out problems.
        before: samples of the earlier evaluation; the first sample of a problem is shown.
        after: samples of the later evaluation.
        count: how many problems.
    """
    earlier, later = _first_samples(before), _first_samples(after)
    both = [
        SampleComparison(problem, earlier[problem.problem_id], later[problem.problem_id])
        for problem in problems
        if problem.problem_id in earlier and problem.problem_id in later
    ]
    # One problem of each kind before a second of the same kind; ties keep the order of the problems.
    kinds: dict[str, int] = {}
    ranked: list[tuple[int, int, int, SampleComparison]] = []
    for sample in sorted(both, key=_gain, reverse=True):
        kind = sample.problem.source
        ranked.append((kinds.get(kind, 0), -_gain(sample), len(ranked), sample))
        kinds[kind] = kinds.get(kind, 0) + 1
    ranked.sort(key=lambda item: item[:3])
    return [item[3] for item in ranked[:count]]


def write_samples(path: Path, samples: Sequence[SampleComparison], *, before_name: str, after_name: str) -> Path:
    """Writes the page as Markdown: each span under its speaker, in the order of the rollout."""
    lines = [f"# Sample trajectories: {before_name} and {after_name}", ""]
    for number, sample in enumerate(samples, start=1):
        lines += [f"## {number}. {sample.problem.problem_id}", ""]
        lines += [*_fenced(sample.problem.text), "", f"Gold answer: `{sample.problem.answer}`", ""]
        for name, record in ((before_name, sample.before), (after_name, sample.after)):
            lines += [f"### After {name}: {_outcome(record)}", ""]
            for kind, text in _spans(record.segments):
                lines += [f"*{_SPEAKERS.get(kind, kind)}*", "", *_fenced(text), ""]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def print_samples(console: Console, samples: Sequence[SampleComparison], *, before_name: str, after_name: str) -> None:
    """Prints the rollouts, long ones shortened in the middle."""
    for sample in samples:
        console.print(Text(f"\n{sample.problem.text}", style="bold"), soft_wrap=True)
        for name, record in ((before_name, sample.before), (after_name, sample.after)):
            body = Text()
            for kind, text in _spans(record.segments):
                body.append(text, style=_STYLES.get(kind, ""))
            colour = "green" if record.correct else "red"
            console.print(Panel(_shortened(body), title=f"{name}: {_outcome(record)}", border_style=colour))


def _first_samples(records: Iterable[SampleRecord]) -> dict[str, SampleRecord]:
    first: dict[str, SampleRecord] = {}
    for record in sorted(records, key=lambda record: record.key):
        if record.scored:
            first.setdefault(record.problem_id, record)
    return first


def _gain(sample: SampleComparison) -> int:
    return int(sample.after.correct) - int(sample.before.correct)


def _outcome(record: SampleRecord) -> str:
    answer = "" if record.extracted is None else f" (answered {record.extracted})"
    calls = f"{record.tool_calls} tool call{'' if record.tool_calls == 1 else 's'}"
    return f"{record.status}{answer}, {record.end_reason}, {calls}, {record.response_tokens} tokens"


def _spans(segments: Iterable[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """What follows the prompt, neighbouring spans of one kind joined."""
    spans: list[tuple[str, str]] = []
    for segment in segments:
        kind, text = str(segment["kind"]), str(segment["text"])
        if kind == "prompt" or not text:
            continue
        if spans and spans[-1][0] == kind:
            spans[-1] = (kind, spans[-1][1] + text)
        else:
            spans.append((kind, text))
    return spans


def _fenced(text: str) -> list[str]:
    # A fence longer than any run of backticks inside keeps the policy's text from ending the block.
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}text", text.rstrip("\n"), fence]


def _shortened(text: Text) -> Text:
    if len(text) <= _PRINTED_CHARACTERS:
        return text
    half = _PRINTED_CHARACTERS // 2
    return Text.assemble(text[:half], Text("\n[...]\n", style="dim"), text[-half:])
