"""What `rstar-sandbox bench` runs and prints."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from rstar_protos.service import ClientSecurity
from rstar_sandbox.bench import report
from rstar_sandbox.bench.deaths import measure_deaths
from rstar_sandbox.bench.leaks import measure_growth
from rstar_sandbox.bench.overload import Overload, measure_overload
from rstar_sandbox.bench.rates import Plan, measure_rates
from rstar_sandbox.bench.targets import Http, Service, parse_other

__all__ = ["Plan", "deaths", "overload", "parse_other", "rates"]

_BUILT_IN_TARGETS = 3


def rates(
    plan: Plan, endpoint: str, security: ClientSecurity | None, others: Sequence[Http], json_file: Path | None
) -> bool:
    """Measures rates and prints the report; False: an answer was wrong."""
    steps = plan.steps(_BUILT_IN_TARGETS + len(others)) + len(plan.tiers) * (_BUILT_IN_TARGETS + len(others))
    with _progress(steps) as (progress, bar):

        def step(words: str) -> None:
            progress.update(bar, advance=1, description=words)

        found = asyncio.run(measure_rates(plan, Service(endpoint, security), others, step))
    print(report.text(found))
    _write(found, json_file)
    # What others got wrong is in the table; this command answers for this service.
    return not any(row["wrong"] for row in found["rows"] if row["target"].startswith("service"))


def overload(seconds: float, json_file: Path | None) -> bool:
    """Overloads a service of its own; False: it did not stand it."""

    async def measure() -> Overload:
        service = Service(options=("--warm", ""))
        async with service.opened():
            return await measure_overload(service, seconds)

    with _progress(None, "overload") as _:
        found = asyncio.run(measure())
    unhinted = f", {found.refused_without_hint} without" if found.refused_without_hint else ""
    print(
        f"capacity {found.capacity_per_second:.0f}/s, offered {found.offered_per_second:.0f}/s for {seconds:g} s: "
        f"{sum(found.statuses.values())} answered ({_counts(found.statuses)}), "
        f"{found.refused} refused with a retry hint{unhinted}\n"
        f"p99 of single calls before: {found.calm_p99_ms:.0f} ms; normal again after {found.recovery_seconds:.2f} s\n"
        f"{'passed' if found.passed else 'FAILED'}"
    )
    _write(asdict(found), json_file)
    return found.passed


def deaths(calls: int, json_file: Path | None) -> bool:
    """Kills processes while calls run; False: a call was not answered, or not with its own answer."""
    with _progress(calls, "answers") as (progress, bar):
        found = asyncio.run(measure_deaths(calls, step=lambda done: progress.update(bar, completed=done)))
    print(
        f"{found.calls} calls on {found.seconds:.0f} s, {sum(found.killed.values())} processes killed "
        f"({_counts(found.killed)}): {found.answers} answers ({_counts(found.statuses)}), {found.foreign} foreign, "
        f"{found.twice} twice; longest wait {found.worst_milliseconds:.0f} ms\n"
        f"{'passed' if found.passed else 'FAILED'}"
    )
    _write(asdict(found), json_file)
    return found.passed


def leaks(calls: int, json_file: Path | None) -> bool:
    """Looks at what a service holds before and after many calls; False: it grew."""
    with _progress(calls, "calls") as (progress, bar):
        found = measure_growth(calls, on_done=lambda done: progress.advance(bar, done))
    print(f"after {found.calls // 10} calls: {found.before}\nafter {found.calls} calls: {found.after}")
    print("passed" if found.is_flat else f"FAILED: grew by {found.grew}")
    _write({**asdict(found), "grew": found.grew}, json_file)
    return found.is_flat


@contextmanager
def _progress(total: int | None, words: str = "") -> Iterator[tuple[Progress, Any]]:
    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        yield progress, progress.add_task(words, total=total)


def _write(found: dict[str, Any], path: Path | None) -> None:
    if path is not None:
        report.write_json(found, path)


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"
