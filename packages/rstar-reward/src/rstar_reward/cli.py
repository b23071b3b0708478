"""The command line: `serve`, `grade` and `bench`."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress

from rstar_protos.cli import run_typer
from rstar_protos.errors import UserInputError
from rstar_protos.jsonl import check_other_file, format_line, read_rows
from rstar_protos.reward.v1 import reward_pb2, reward_pb2_grpc
from rstar_protos.service import serve as serve_service
from rstar_protos.service import serve_settings
from rstar_reward.judge import Judge
from rstar_reward.service import RewardServicer
from rstar_reward.transcript import Transcript, end_kind
from rstar_reward.verdict import Verdict
from rstar_reward.verifiers import load_verifier
from rstar_reward.workers import PoolSettings, WorkerPool

__all__ = ["app", "main"]

app = typer.Typer(
    help="Judges the declared answers of rollouts.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

# Where a line holds what the policy wrote.
_RESPONSES = ("response", "segments", "turns")

_Workers = Annotated[int | None, typer.Option(help="Worker processes; default: one per CPU.")]


def main() -> None:
    """Runs the command line."""
    run_typer(app, {"verifier": "--verifier"})


@app.callback()
def _root() -> None:
    """Judges the declared answers of rollouts."""


@app.command()
def serve(
    listen: Annotated[str, typer.Option(help="unix:/path or host:port; port 0: any free one.")] = "127.0.0.1:7102",
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate chain (PEM).")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Private key (PEM).")] = None,
    tls_client_ca: Annotated[Path | None, typer.Option(help="CA of clients: makes TLS mutual.")] = None,
    token_file: Annotated[Path | None, typer.Option(help="File with the bearer token.")] = None,
    metrics_port: Annotated[int | None, typer.Option(help="Loopback port for Prometheus.")] = None,
    watch_parent: Annotated[bool, typer.Option(help="End when standard input is closed.")] = False,
    workers: _Workers = None,
    cache_size: Annotated[int, typer.Option(min=0, help="Comparisons remembered; 0: none.")] = 100_000,
) -> None:
    """Serves the RewardService until SIGTERM or Ctrl-C."""
    settings = serve_settings(listen, tls_cert, tls_key, tls_client_ca, token_file, metrics_port, watch_parent)

    async def run() -> None:
        pool = WorkerPool(_pool_settings(workers))

        async def register(server: Any) -> None:
            await pool.start()
            reward_pb2_grpc.add_RewardServiceServicer_to_server(RewardServicer(pool, cache_size), server)

        try:
            await serve_service(settings, "reward", register, [reward_pb2.DESCRIPTOR], on_stop=pool.close)
        finally:
            await pool.close()

    asyncio.run(run())


@app.command()
def grade(
    source: Annotated[Path, typer.Argument(metavar="IN.jsonl", help="Lines {id, gold, response}.")],
    target: Annotated[Path, typer.Argument(metavar="OUT.jsonl", help="Lines {id, reward, status, reason, extracted}.")],
    verifier: Annotated[str, typer.Option(help="Kind of answers, for lines that name none.")] = "math",
    workers: _Workers = None,
) -> None:
    """Grades a JSONL file.

    A line may also hold `end_reason` (or `finish_reason`), `verifier`, and `turns` ([{role, text}]) or `segments`
    ([{kind, text}]) in place of `response`.
    """
    load_verifier(verifier)
    check_other_file(source, target, "OUT.jsonl")
    rows = list(_read_rows(source))
    counts: Counter[str] = Counter()
    console = Console(stderr=True)
    with _open_for_writing(target) as out, Progress(console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("grading", total=len(rows))

        def write(row: Mapping[str, Any], verdict: Verdict) -> None:
            record = {
                "id": row["id"],
                "reward": verdict.reward,
                "status": verdict.status.value,
                "reason": verdict.reason,
                "extracted": verdict.extracted,
            }
            out.write(format_line(record))
            counts[verdict.status.value] += 1
            progress.advance(task)

        asyncio.run(_grade(rows, verifier, _pool_settings(workers), write))
    summary = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    console.print(f"{len(rows)} graded: {summary or 'nothing'}")


@app.command()
def bench(
    workload: Annotated[
        list[str] | None, typer.Option(help="integers: long responses; hard: answers of every form. Default: both.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Distinct pairs of each workload.")] = 2000,
    seed: Annotated[int, typer.Option(help="Of the generated pairs.")] = 0,
    workers: _Workers = None,
    reference: Annotated[
        str | None,
        typer.Option(metavar="MODULE:FUNCTION", help="A grader to compare with, called as FUNCTION(response, gold)."),
    ] = None,
    seconds: Annotated[float, typer.Option(min=0.1, help="CPU time for each grader that is called directly.")] = 30.0,
    out: Annotated[Path | None, typer.Option(help="File for the figures as JSON.")] = None,
) -> None:
    """Measures verdicts per CPU-second of all server processes, through gRPC, on distinct pairs without a cache.

    Beside it: the same with repeated answers and the cache on, math-verify called directly, and a reference grader.
    """
    from rstar_reward.bench.report import print_figures

    print_figures(
        workload or ["integers", "hard"], count, seed, _pool_settings(workers).workers, reference, seconds, out
    )


async def _grade(rows: list[dict[str, Any]], verifier: str, settings: PoolSettings, write: Any) -> None:
    pool = WorkerPool(settings)
    await pool.start()
    try:
        judge = Judge(pool)
        # In order, so that the output lines up with the input, and in blocks, so that memory stays bounded.
        block = 64 * settings.workers
        for start in range(0, len(rows), block):
            part = rows[start : start + block]
            verdicts = await asyncio.gather(*(_judge_row(judge, row, verifier) for row in part))
            for row, verdict in zip(part, verdicts, strict=True):
                write(row, verdict)
    finally:
        await pool.close()


async def _judge_row(judge: Judge, row: Mapping[str, Any], verifier: str) -> Verdict:
    response = next(row[key] for key in _RESPONSES if row.get(key) is not None)
    return await judge.judge(str(row["gold"]), response, _end_reason(row), row.get("verifier") or verifier)


def _end_reason(row: Mapping[str, Any]) -> object:
    return row.get("end_reason", row.get("finish_reason"))


def _read_rows(path: Path) -> Iterator[dict[str, Any]]:
    for _, where, row in read_rows(path, "IN.jsonl"):
        if "id" not in row:
            raise UserInputError.message(f"{where}: `id` is missing; a line needs `id`, `gold` and `response`")
        if isinstance(row.get("gold"), bool) or not isinstance(row.get("gold"), str | int):
            raise UserInputError(f"{where}: gold", row.get("gold"), "a string or a whole number")
        given = [key for key in _RESPONSES if row.get(key) is not None]
        if len(given) != 1:
            problem = f"{' and '.join(given)} are given" if given else "none is given"
            raise UserInputError.message(f"{where}: a line needs one of {', '.join(_RESPONSES)}; {problem}")
        _check_response(row[given[0]], given[0], where)
        try:
            # Before any worker is started.
            end_kind(_end_reason(row))
            load_verifier(row.get("verifier") or "")
        except UserInputError as error:
            raise UserInputError.message(f"{where}: {error}") from error
        yield row


def _open_for_writing(path: Path) -> Any:
    try:
        return path.open("w", encoding="utf-8")
    except OSError as error:
        raise UserInputError("OUT.jsonl", str(path), f"a file that can be written ({error.strerror})") from error


def _pool_settings(workers: int | None) -> PoolSettings:
    if workers is None:
        return PoolSettings()
    if not 1 <= workers <= 1024:
        raise UserInputError("--workers", workers, "a whole number from 1 to 1024")
    return PoolSettings(workers=workers)


def _check_response(response: object, name: str, where: str) -> None:
    accepted = "a string" if name == "response" else "a list of objects"
    if not isinstance(response, str if name == "response" else list):
        raise UserInputError(f"{where}: {name}", response, accepted)
    try:
        Transcript.of(response)
    except UserInputError as error:
        raise UserInputError.message(f"{where}: {str(error).replace('segments', name, 1)}") from error
