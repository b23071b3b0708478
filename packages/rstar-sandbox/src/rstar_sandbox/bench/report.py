"""A report of rates, as text: tables, comparisons, and what a training step costs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rstar_protos.errors import UserInputError
from rstar_sandbox.bench.intervals import Mean

__all__ = ["comparisons", "projection", "text", "write_json"]

_SERVICE = "service"
_CALLS_PER_STEP = 45_000
"""Tool calls of one training step (rStar2-Agent, section on the code environment)."""
_CLUSTER_CORES = (64, 8 * 64)
"""One node's worth of cores, and the paper's cluster: 8 nodes, of which each has at least 64 cores to spare."""


def text(report: dict[str, Any]) -> str:
    """The whole report."""
    return "\n".join([*_head(report), "", *_table(report), "", *comparisons(report), "", *projection(report)])


def write_json(report: dict[str, Any], path: Path) -> None:
    """The whole report as JSON; not-a-number becomes null.

    Raises:
        UserInputError: the file cannot be written.
    """
    try:
        path.write_text(json.dumps(_finite(report), indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise UserInputError("--json", str(path), f"a file that can be written ({error.strerror})") from error


def comparisons(report: dict[str, Any]) -> Iterator[str]:
    """The service against each other target and against the floor, round by round."""
    rows = {(row["tier"], row["concurrency"], row["target"]): row for row in report["rows"]}
    for (tier, concurrency, target), row in rows.items():
        if target != _SERVICE:
            continue
        floor = report["floor"][tier]
        yield f"{tier}, {concurrency} at once:"
        for (other_tier, other_concurrency, other), found in rows.items():
            if (other_tier, other_concurrency) == (tier, concurrency) and other != target:
                ratio = Mean.of([mine / theirs for mine, theirs in zip(row["rates"], found["rates"], strict=True)])
                cpu = found["cpu_ms_per_call"]["all"]["mean"] / row["cpu_ms_per_call"]["all"]["mean"]
                # The processes of a foreign server are not ours to see.
                seen = "" if other in ("code-judge", "sandbox-fusion") else f", {cpu:.1f}x less CPU"
                yield f"  {ratio}x the calls/s of {other}{seen}"
        share = row["calls_per_second"]["mean"] / floor["calls_per_second"]["mean"]
        cpu_ratio = row["cpu_ms_per_call"]["all"]["mean"] / floor["cpu_ms"]["mean"]
        yield f"  {share:.2f} of the calls/s of bare fork and reap on all cores, {cpu_ratio:.1f}x its CPU"
        if concurrency == min(report_concurrencies(report)) and row["added_ms"]:
            added = row["added_ms"]
            yield f"  added to the program's own time: p50 {added['p50']:.1f} ms, p99 {added['p99']:.1f} ms"


def projection(report: dict[str, Any]) -> Iterator[str]:
    """What the calls of a training step cost, measured here and projected."""
    busiest = max(report_concurrencies(report))
    yield f"{_CALLS_PER_STEP} calls, from the CPU time measured at {busiest} at once:"
    for row in report["rows"]:
        if row["target"] != _SERVICE or row["concurrency"] != busiest:
            continue
        cpu = row["cpu_ms_per_call"]["all"]["mean"]
        here = _CALLS_PER_STEP / row["calls_per_second"]["mean"]
        parts = [f"{here:.0f} s on this machine ({report['machine']['cores']} cores)"]
        for cores in _CLUSTER_CORES:
            seconds = _CALLS_PER_STEP * cpu / 1000 / cores
            parts.append(f"{seconds:.2f} s on {cores} cores")
        yield f"  {row['tier']}: {cpu:.2f} ms of CPU a call -> {', '.join(parts)}"
    yield "  assumed: CPU per call stays what it is here, work spreads evenly, and dispatchers are added so that none"
    yield "  is the bottleneck (one dispatcher process is one core of `front` time); a program's own waiting is free."


def report_concurrencies(report: dict[str, Any]) -> list[int]:
    """Those that were measured."""
    return sorted({row["concurrency"] for row in report["rows"]})


def _head(report: dict[str, Any]) -> list[str]:
    machine = report["machine"]
    return [
        f"{machine['cores']} cores, Python {machine['python']}, {machine['system']}",
        f"isolation {report['isolation']}, {report['slots']} slots, {report['rounds']} rounds of "
        f"{report['seconds']:g} s each, interleaved; ± is half of the 95 % interval over rounds",
        *(
            f"floor, {tier}: fork and reap {_plain(floor['wall_ms'])} ms, CPU {_plain(floor['cpu_ms'])} ms, "
            f"{_plain(floor['calls_per_second'])}/s on all cores"
            for tier, floor in report["floor"].items()
        ),
    ]


def _table(report: dict[str, Any]) -> list[str]:
    titles = ["tier", "at once", "target", "calls/s", "p50 ms", "p99 ms", "CPU ms: client", "front", "below", "all"]
    phases = ("fork", "exec", "drain", "reap")
    lines = [[*titles, *phases, "wrong"]]
    for row in report["rows"]:
        cpu, phase = row["cpu_ms_per_call"], row["phase_cpu_ms_per_call"]
        lines.append(
            [
                row["tier"],
                str(row["concurrency"]),
                row["target"],
                _plain(row["calls_per_second"]),
                f"{row['latency_ms']['p50']:.1f}",
                f"{row['latency_ms']['p99']:.1f}",
                *(_plain(cpu[part]) if part in cpu else "-" for part in ("client", "front", "below", "all")),
                *(f"{phase[name]['mean']:.2f}" if name in phase else "-" for name in phases),
                str(row["wrong"]),
            ]
        )
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]


def _plain(mean: dict[str, float]) -> str:
    return str(Mean(mean["mean"], mean["half_width"]))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
