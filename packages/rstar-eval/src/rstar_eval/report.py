"""What an evaluation found: scores with intervals, and the shares that tell whether a score can be trusted.

Everything is computed from the samples that are there, so a report can be made again from their file. Samples that
infrastructure lost, or whose gold answer is unusable, are counted and left out of every score and share.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rstar_eval.problems import EvalProblem
from rstar_eval.sample import SampleRecord
from rstar_eval.settings import EvalSettings
from rstar_eval.statistics import Estimate, pass_at_1, share
from rstar_model.types import EndReason

__all__ = ["PartSummary", "Report"]


@dataclass(frozen=True)
class PartSummary:
    """The figures of a set of samples: all of them, or those of one tag. Shares are None where unknown."""

    pass_at_1: Estimate
    pass_at_1_finished: Estimate
    """Over the samples that the policy ended by itself."""
    scored: int
    excluded: int
    """Left out of every figure here: infrastructure, cancelled, unscorable, bad_gold."""
    statuses: dict[str, int]
    """Samples by verdict, the excluded ones included."""
    end_reasons: dict[str, int]
    """Scored samples by end reason."""
    finished_share: float | None
    truncation_share: float | None
    extraction_rate: float | None
    """Scored samples in which the verifier found a declared answer."""
    answer_not_extracted: int
    """Scored samples with an answer tag or a box in which the verifier found no answer."""
    tool_call_share: float | None
    """Scored samples with at least one parsed and executed call."""
    tool_calls: int
    tool_error_share: float | None
    """Failed calls of all calls."""
    mean_response_tokens: float | None
    mean_policy_tokens: float | None
    mean_turns: float | None

    @classmethod
    def of(cls, records: Sequence[SampleRecord], *, seed: int) -> PartSummary:
        """Computes the figures; `seed` is that of the bootstrap."""
        scored = [record for record in records if record.scored]
        finished = [record for record in scored if record.finished]
        count = len(scored)
        ends = Counter(record.end_reason for record in scored)
        calls = sum(record.tool_calls for record in scored)
        extracted = sum(record.extracted is not None for record in scored)
        return cls(
            pass_at_1=pass_at_1(_outcomes(scored), seed=seed),
            pass_at_1_finished=pass_at_1(_outcomes(finished), seed=seed),
            scored=count,
            excluded=len(records) - count,
            statuses=dict(sorted(Counter(record.status for record in records).items())),
            end_reasons=dict(sorted(ends.items())),
            finished_share=share(len(finished), count),
            truncation_share=share(ends[EndReason.TRUNCATED.value], count),
            extraction_rate=share(extracted, count),
            answer_not_extracted=sum(record.answer_present and record.extracted is None for record in scored),
            tool_call_share=share(sum(record.executed_tool_calls > 0 for record in scored), count),
            tool_calls=calls,
            tool_error_share=share(sum(record.failed_tool_calls for record in scored), calls),
            mean_response_tokens=_mean(record.response_tokens for record in scored),
            mean_policy_tokens=_mean(record.policy_tokens for record in scored),
            mean_turns=_mean(record.turns for record in scored),
        )

    def to_json_dict(self) -> dict[str, Any]:
        """The figures as JSON values; `pass_at_1` is the mean, `ci95` its interval."""
        values = {name: getattr(self, name) for name in _PLAIN_FIELDS}
        return {
            "pass_at_1": self.pass_at_1.mean,
            "ci95": self.pass_at_1.interval,
            "interval_method": self.pass_at_1.method,
            "problems": self.pass_at_1.problems,
            "samples": self.scored,
            "pass_at_1_finished": self.pass_at_1_finished.mean,
            "ci95_finished": self.pass_at_1_finished.interval,
            **values,
        }


_PLAIN_FIELDS = (
    "excluded",
    "statuses",
    "end_reasons",
    "finished_share",
    "truncation_share",
    "extraction_rate",
    "answer_not_extracted",
    "tool_call_share",
    "tool_calls",
    "tool_error_share",
    "mean_response_tokens",
    "mean_policy_tokens",
    "mean_turns",
)


@dataclass(frozen=True)
class Report:
    """One evaluation of one policy."""

    name: str
    policy: str
    settings: EvalSettings
    overall: PartSummary
    by_tag: dict[str, PartSummary]
    missing: int
    """Samples asked for that have no score for lack of infrastructure. Not 0: the evaluation is incomplete."""
    short_problems: tuple[str, ...]
    """Ids of the problems these belong to."""
    rows: tuple[SampleRecord, ...]

    @classmethod
    def of(
        cls,
        records: Iterable[SampleRecord],
        settings: EvalSettings,
        *,
        problems: Sequence[EvalProblem] = (),
        name: str = "",
        policy: str = "",
    ) -> Report:
        """Computes a report from samples.

        Args:
            records: one per problem and sample index.
            settings: how they were sampled.
            problems: those asked for, each `settings.samples` times; what they lack counts as missing.
            name: title of the evaluation.
            policy: which policy was evaluated.
        """
        rows = tuple(sorted(records, key=lambda record: record.key))
        tagged: defaultdict[str, list[SampleRecord]] = defaultdict(list)
        for record in rows:
            for tag in record.tags:
                tagged[tag].append(record)
        present = Counter(record.problem_id for record in rows if not record.lost)
        lacking = {problem.problem_id: settings.samples - present[problem.problem_id] for problem in problems}
        return cls(
            name=name,
            policy=policy,
            settings=settings,
            overall=PartSummary.of(rows, seed=settings.seed),
            by_tag={tag: PartSummary.of(tagged[tag], seed=settings.seed) for tag in sorted(tagged)},
            missing=sum(count for count in lacking.values() if count > 0),
            short_problems=tuple(problem_id for problem_id, count in lacking.items() if count > 0),
            rows=rows,
        )

    @property
    def pass_at_1(self) -> Estimate:
        """pass@1 over all scored samples."""
        return self.overall.pass_at_1

    @property
    def complete(self) -> bool:
        """Whether every sample asked for has a verdict."""
        return self.missing == 0

    def to_json_dict(self, *, rows: bool = False) -> dict[str, Any]:
        """The report as JSON values, with the samples when `rows` is set."""
        values: dict[str, Any] = {
            "name": self.name,
            "policy": self.policy,
            **self.overall.to_json_dict(),
            "temperature": self.settings.temperature,
            "samples_per_problem": self.settings.samples,
            "missing": self.missing,
            "short_problems": list(self.short_problems),
            "by_tag": {tag: part.to_json_dict() for tag, part in self.by_tag.items()},
            "settings": self.settings.to_json_dict(),
        }
        if rows:
            values["rows"] = [record.to_json_dict() for record in self.rows]
        return values

    def to_json(self, *, rows: bool = False, indent: int | None = 2) -> str:
        """The report as JSON text; `indent` None puts it on one line."""
        return json.dumps(self.to_json_dict(rows=rows), indent=indent, ensure_ascii=False, allow_nan=False)

    def write(self, path: Path) -> None:
        """Writes the JSON text, replacing an earlier file in one step."""
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(path.name + ".part")
        partial.write_text(self.to_json() + "\n", encoding="utf-8")
        partial.replace(path)


def _outcomes(records: Iterable[SampleRecord]) -> list[list[bool]]:
    by_problem: defaultdict[str, list[bool]] = defaultdict(list)
    for record in records:
        by_problem[record.problem_id].append(record.correct)
    return list(by_problem.values())


def _mean(values: Iterable[float]) -> float | None:
    numbers = list(values)
    return sum(numbers) / len(numbers) if numbers else None
