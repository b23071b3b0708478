"""The command `rstar-sandbox`: serve, exec, batch, bench, doctor."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from rstar_protos.cli import run_typer
from rstar_protos.errors import UserInputError
from rstar_sandbox.limits import DEFAULT_LIMITS, MIB, MOST_LIMITS, Limits, limits_given
from rstar_sandbox.settings import SandboxSettings

if TYPE_CHECKING:  # these load gRPC, and a zygote is started before that
    from rstar_protos.service import ServeSettings
    from rstar_sandbox.dispatcher.dispatcher import DispatchSettings
    from rstar_sandbox.dispatcher.worker import WorkerSettings
    from rstar_sandbox.serving import HttpSettings
    from rstar_sandbox.zygote_process import ZygoteProcess

__all__ = ["app", "main"]

app = typer.Typer(
    name="rstar-sandbox",
    help="Runs untrusted Python programs fast: one, a file of them, or as a gRPC service.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

Endpoint = Annotated[
    str, typer.Option("--endpoint", help="A running service; embedded: start one that ends with this command.")
]
_MOST_SECONDS = f"at most {MOST_LIMITS.wall_seconds:g}, and more is lowered to that"
_MOST_MEMORY = f"at most {MOST_LIMITS.memory_bytes // MIB}, and more is lowered to that"
Timeout = Annotated[
    float,
    typer.Option("--timeout", help=f"Wall clock limit of a program, seconds; 0: the default; {_MOST_SECONDS}."),
]
Memory = Annotated[
    float, typer.Option("--memory-mb", help=f"Memory limit of a program, MiB; 0: the default; {_MOST_MEMORY}.")
]
Tls = Annotated[Path | None, typer.Option(help="PEM file.")]
TokenFile = Annotated[Path | None, typer.Option("--token-file", help="File that holds the bearer token.")]


@app.command()
def serve(
    role: Annotated[
        Literal["all", "dispatcher", "worker"],
        typer.Option(help="all: clients, queue and slots in one process. dispatcher and worker: on several machines."),
    ] = "all",
    listen: Annotated[
        str | None,
        typer.Option(
            help="unix:/path or host:port; port 0: any free one. Default: 127.0.0.1:7101; worker: 127.0.0.1:0."
        ),
    ] = None,
    tls_cert: Tls = None,
    tls_key: Tls = None,
    tls_client_ca: Tls = None,
    token_file: TokenFile = None,
    metrics_port: Annotated[int | None, typer.Option(help="Loopback port for Prometheus.")] = None,
    watch_parent: Annotated[bool, typer.Option("--watch-parent", help="End when standard input ends.")] = False,
    http: Annotated[
        str | None, typer.Option(help="host:port of an HTTP interface beside gRPC, with the same TLS and token.")
    ] = None,
    slots: Annotated[int, typer.Option(help="Programs at the same time; 0: twice the number of cores.")] = 0,
    queue_limit: Annotated[
        int | None,
        typer.Option(
            help="Programs that may wait. Default: about a second of work, at most 128 for each slot, and at least 16 "
            "for each where programs take 0.25 s or more, in proportion fewer where they take less."
        ),
    ] = None,
    default_timeout: Annotated[
        float, typer.Option(help=f"Wall clock limit, seconds, where a request gives none; {_MOST_SECONDS}.")
    ] = DEFAULT_LIMITS.wall_seconds,
    default_memory_mb: Annotated[
        float, typer.Option(help=f"Memory limit, MiB, where a request gives none; {_MOST_MEMORY}.")
    ] = (DEFAULT_LIMITS.memory_bytes / MIB),
    max_sessions: Annotated[int, typer.Option(help="Sessions open at the same time.")] = 16,
    seed: Annotated[
        int | None, typer.Option(help="Make results a function of the program: random numbers and object addresses.")
    ] = None,
    work_dir: Annotated[Path | None, typer.Option(help="Where programs get their working directories.")] = None,
    warm: Annotated[str, typer.Option(help="Modules to import ahead, comma-separated.")] = "numpy,scipy,sympy",
    isolation: Annotated[
        str, typer.Option(help="full, user, container, limits or off; auto: the highest that works here.")
    ] = "auto",
    require_level: Annotated[
        str | None, typer.Option(help="Serve nothing below this level: full, user, container or limits.")
    ] = None,
    dispatcher: Annotated[str | None, typer.Option(help="Worker: endpoint of the dispatcher.")] = None,
    dispatcher_ca: Tls = None,
    dispatcher_cert: Tls = None,
    dispatcher_key: Tls = None,
    dispatcher_token_file: Annotated[
        Path | None, typer.Option(help="Worker: file with the token that the dispatcher asks of its callers.")
    ] = None,
    worker_token_file: Annotated[
        Path | None, typer.Option(help="Dispatcher and worker: file with a token that workers need beyond that.")
    ] = None,
    name: Annotated[str, typer.Option(help="Worker: its name; the default is made from the host's.")] = "",
) -> None:
    """Serve SandboxService over gRPC until stopped."""
    _check_role(role, dispatcher, http)
    if queue_limit is not None and queue_limit < 0:
        raise UserInputError("--queue-limit", queue_limit, "a whole number from 0")
    settings = _settings(
        slots, default_timeout, default_memory_mb, max_sessions, seed, work_dir, warm, isolation, require_level
    )
    with contextlib.ExitStack() as handing_over:
        # The zygote comes before the first import of gRPC, so that nothing of gRPC is in it; it warms up meanwhile.
        zygote = None if role == "dispatcher" else _start_zygote(settings, handing_over)
        from rstar_protos.service import ClientSecurity, read_token, serve_settings
        from rstar_sandbox import serving
        from rstar_sandbox.dispatcher.dispatcher import DispatchSettings
        from rstar_sandbox.dispatcher.worker import WorkerSettings

        address = listen or ("127.0.0.1:0" if role == "worker" else "127.0.0.1:7101")
        options = serve_settings(address, tls_cert, tls_key, tls_client_ca, token_file, metrics_port, watch_parent)
        web = serving.HttpSettings(http).checked(options.security) if http else None
        worker_token = read_token(worker_token_file, "--worker-token-file")
        node = None
        if dispatcher is not None:
            token = read_token(dispatcher_token_file, "--dispatcher-token-file")
            security = ClientSecurity(dispatcher_ca, dispatcher_cert, dispatcher_key, token)
            node = WorkerSettings(dispatcher, security, worker_token, name).checked()
        handing_over.pop_all()  # from here on serving ends the zygote
        _serve_role(settings, options, DispatchSettings(queue_limit=queue_limit), web, worker_token, node, zygote)


def _settings(
    slots: int,
    timeout: float,
    memory_mb: float,
    max_sessions: int,
    seed: int | None,
    work_dir: Path | None,
    warm: str,
    isolation: str,
    require_level: str | None,
) -> SandboxSettings:
    limits = limits_given(timeout, memory_mb, seconds_field="--default-timeout", memory_field="--default-memory-mb")
    limits = replace(limits, cpu_seconds=limits.wall_seconds)
    fallback = SandboxSettings()
    return SandboxSettings(
        slots=slots or fallback.slots,
        defaults=limits.over(DEFAULT_LIMITS, Limits()),
        warm=tuple(name.strip() for name in warm.split(",") if name.strip()),
        folder=work_dir or fallback.folder,
        seed=seed,
        max_sessions=max_sessions,
        isolation=isolation,
        require_level=require_level,
    ).checked()


def _start_zygote(settings: SandboxSettings, handing_over: contextlib.ExitStack) -> ZygoteProcess:
    """Starts the zygote, which ends with the stack when nobody takes it over."""
    from rstar_sandbox.zygote_process import ZygoteProcess

    zygote = ZygoteProcess(settings)
    handing_over.callback(zygote.stop)
    return zygote


def _serve_role(
    settings: SandboxSettings,
    options: ServeSettings,
    dispatch: DispatchSettings,
    web: HttpSettings | None,
    worker_token: str | None,
    node: WorkerSettings | None,
    zygote: ZygoteProcess | None,
) -> None:
    """Serves until told to stop: as a worker where there is a dispatcher, as a dispatcher where there is no zygote."""
    from rstar_sandbox import serving

    if node is not None:
        asyncio.run(serving.serve_worker(settings, options, node, zygote))
    elif zygote is None:
        asyncio.run(serving.serve_dispatcher(options, dispatch, web, worker_token))
    else:
        asyncio.run(serving.serve_all(settings, options, dispatch, web, zygote))


def _check_role(role: str, dispatcher: str | None, http: str | None) -> None:
    if role == "worker" and dispatcher is None:
        raise UserInputError.message("--role worker needs --dispatcher ENDPOINT")
    if role != "worker" and dispatcher is not None:
        raise UserInputError("--dispatcher", dispatcher, f"nothing with --role {role}: only a worker has a dispatcher")
    if role == "worker" and http is not None:
        raise UserInputError("--http", http, "nothing with --role worker, which serves its dispatcher only")


@app.command(name="exec")
def execute(
    file: Annotated[Path | None, typer.Argument(help="The program; - for standard input.")] = None,
    code: Annotated[str | None, typer.Option("--code", "-c", help="The program itself.")] = None,
    stdin: Annotated[Path | None, typer.Option(help="File that the program reads as standard input.")] = None,
    timeout: Timeout = 0.0,
    memory_mb: Memory = 0.0,
    endpoint: Endpoint = "embedded",
    token_file: TokenFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole result as one JSON object.")] = False,
) -> None:
    """Run one program; its output and the value of its last expression are printed. Exit code 1: it failed."""
    from rstar_sandbox.sandbox import Sandbox

    if (file is None) == (code is None):
        raise UserInputError.message("give either a file or -c CODE")
    source = code if code is not None else _read_text(file)
    given = _read_bytes(stdin) if stdin is not None else b""
    limits = limits_given(timeout, memory_mb, seconds_field="--timeout", memory_field="--memory-mb")
    # Only what the program names is worth the wait for one program.
    warm = ",".join(name for name in SandboxSettings().warm if name in source)
    with Sandbox(endpoint, slots=1, security=_security(token_file), options=["--warm", warm]) as sandbox:
        result = sandbox.run(source, given, limits=limits)
    if as_json:
        print(json.dumps(result.to_json_dict()))
    else:
        sys.stdout.buffer.write(result.stdout)
        sys.stdout.buffer.flush()
        if result.value is not None:
            print(result.value)
        sys.stderr.buffer.write(result.stderr)
        sys.stderr.buffer.flush()
        if result.traceback:
            print(result.traceback, end="", file=sys.stderr)
        if not result.ok:
            ended = f", signal {result.signal}" if result.signal else f", exit code {result.exit_code}"
            print(f"[{result.status.value}{ended}] {result.detail}".rstrip(), file=sys.stderr)
    if not result.ok:
        raise typer.Exit(1)


@app.command()
def batch(
    programs: Annotated[
        Path, typer.Argument(help=f"JSONL: id, code, optional stdin, timeout_s ({_MOST_SECONDS}), memory_mb.")
    ],
    results: Annotated[Path, typer.Argument(help="JSONL, one line for each program, in the order they finish.")],
    endpoint: Endpoint = "embedded",
    slots: Annotated[int, typer.Option(help="Embedded: programs at the same time; 0: twice the cores.")] = 0,
    token_file: TokenFile = None,
) -> None:
    """Run a file of programs and write a file of results."""
    from rstar_protos.jsonl import check_other_file
    from rstar_sandbox.batch import read_programs, run_batch

    check_other_file(programs, results, "RESULTS")
    requests = read_programs(programs)
    counts = run_batch(requests, results, endpoint, slots or None, _security(token_file))
    summary = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    print(f"{len(requests)} programs: {summary or 'none'} -> {results}")


@app.command()
def bench(
    what: Annotated[
        Literal["rates", "overload", "deaths", "leaks"],
        typer.Argument(
            help="rates and CPU; ten times too many calls; processes killed in the middle of work; growth over calls."
        ),
    ] = "rates",
    endpoint: Endpoint = "embedded",
    token_file: TokenFile = None,
    concurrency: Annotated[list[int] | None, typer.Option(help="Calls at once; repeat. Default: 1, 8 and 64.")] = None,
    tier: Annotated[list[str] | None, typer.Option(help="standard, sympy or full; repeat. Default: all.")] = None,
    rounds: Annotated[int, typer.Option(help="Rounds of each target.")] = 5,
    seconds: Annotated[float | None, typer.Option(help="rates: of a round (3); overload: of it all (30).")] = None,
    calls: Annotated[int | None, typer.Option(help="Calls to make. Default: deaths 20,000; leaks 100,000.")] = None,
    against: Annotated[
        list[str] | None, typer.Option(help="rates: code-judge=URL or sandbox-fusion=URL to measure as well; repeat.")
    ] = None,
    against_token_file: Annotated[Path | None, typer.Option(help="File with the bearer token of these.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Also write the report to this file.")] = None,
) -> None:
    """Measure the service; exit code 1: it did not do what it promises."""
    from rstar_protos.service import read_token
    from rstar_sandbox.bench import command
    from rstar_sandbox.bench.programs import TIERS

    if what == "rates":
        plan = command.Plan(
            concurrencies=tuple(concurrency or (1, 8, 64)),
            tiers=tuple(tier or TIERS),
            rounds=rounds,
            seconds=3.0 if seconds is None else seconds,
        ).checked()
        token = read_token(against_token_file, "--against-token-file")
        others = [command.parse_other(text, token) for text in against or ()]
        passed = command.rates(plan, endpoint, _security(token_file), others, json_file)
    elif what == "overload":
        passed = command.overload(30.0 if seconds is None else seconds, json_file)
    elif what == "deaths":
        passed = command.deaths(20_000 if calls is None else calls, json_file)
    else:
        passed = command.leaks(100_000 if calls is None else calls, json_file)
    if not passed:
        raise typer.Exit(1)


@app.command()
def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say what isolation this machine offers, and try it with a few programs."""
    from rstar_sandbox.doctor import examine

    findings = examine()
    if as_json:
        print(json.dumps(findings))
    else:
        width = max(len(name) for name in findings)
        for name, found in findings.items():
            print(f"{name.ljust(width)}  {_shown(found)}")
    if not findings["self-test"]["passed"]:
        raise typer.Exit(1)


def _shown(found: Any) -> str:
    if isinstance(found, bool):
        return "yes" if found else "no"
    if isinstance(found, dict):
        return ", ".join(f"{name}: {_shown(value)}" for name, value in found.items())
    return ", ".join(map(str, found)) if isinstance(found, list) else str(found)


def _security(token_file: Path | None) -> Any:
    from rstar_protos.service import ClientSecurity, read_token

    return ClientSecurity(token=read_token(token_file)) if token_file else None


def _read_text(path: Path | None) -> str:
    assert path is not None
    content = sys.stdin.buffer.read() if str(path) == "-" else _read_bytes(path)
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserInputError("file", str(path), "a program in UTF-8") from error


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserInputError("file", str(path), f"a file that can be read ({error.strerror})") from error


def main() -> None:
    """Entry point of the command line."""
    run_typer(app, {"endpoint": "--endpoint", "programs": "PROGRAMS", "results": "RESULTS", "file": "FILE"})
