"""The command `rstar-sandbox`: serve, exec, batch, doctor."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from rstar_protos.cli import run
from rstar_protos.errors import UserInputError
from rstar_sandbox.limits import DEFAULT_LIMITS, MIB, Limits
from rstar_sandbox.settings import SandboxSettings

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
Timeout = Annotated[float, typer.Option("--timeout", help="Wall clock limit of a program, seconds; 0: the default.")]
Memory = Annotated[float, typer.Option("--memory-mb", help="Memory limit of a program, MiB; 0: the default.")]
Tls = Annotated[Path | None, typer.Option(help="PEM file.")]
TokenFile = Annotated[Path | None, typer.Option("--token-file", help="File that holds the bearer token.")]


@app.command()
def serve(
    listen: Annotated[str, typer.Option(help="unix:/path or host:port; port 0: any free one.")] = "127.0.0.1:7101",
    tls_cert: Tls = None,
    tls_key: Tls = None,
    tls_client_ca: Tls = None,
    token_file: TokenFile = None,
    metrics_port: Annotated[int | None, typer.Option(help="Loopback port for Prometheus.")] = None,
    watch_parent: Annotated[bool, typer.Option("--watch-parent", help="End when standard input ends.")] = False,
    slots: Annotated[int, typer.Option(help="Programs at the same time; 0: twice the number of cores.")] = 0,
    queue_limit: Annotated[int, typer.Option(help="Programs that may wait for a slot.")] = 4096,
    default_timeout: Annotated[
        float, typer.Option(help="Wall clock limit, seconds, where a request gives none.")
    ] = DEFAULT_LIMITS.wall_seconds,
    default_memory_mb: Annotated[float, typer.Option(help="Memory limit, MiB, where a request gives none.")] = (
        DEFAULT_LIMITS.memory_bytes / MIB
    ),
    max_sessions: Annotated[int, typer.Option(help="Sessions open at the same time.")] = 16,
    seed: Annotated[
        int | None, typer.Option(help="Make results a function of the program: random numbers and object addresses.")
    ] = None,
    work_dir: Annotated[Path | None, typer.Option(help="Where programs get their working directories.")] = None,
    warm: Annotated[str, typer.Option(help="Modules to import ahead, comma-separated.")] = "numpy,scipy,sympy",
) -> None:
    """Serve SandboxService over gRPC until stopped."""
    # The zygote comes before the first import of gRPC, so that nothing of gRPC is in it; it warms up meanwhile.
    from rstar_sandbox.zygote_process import ZygoteProcess

    fallback = SandboxSettings()
    limits = Limits(
        wall_seconds=default_timeout, cpu_seconds=default_timeout, memory_bytes=int(default_memory_mb * MIB)
    ).checked()
    settings = SandboxSettings(
        slots=slots or fallback.slots,
        queue_limit=queue_limit,
        defaults=limits.over(DEFAULT_LIMITS, Limits()),
        warm=tuple(name.strip() for name in warm.split(",") if name.strip()),
        folder=work_dir or fallback.folder,
        seed=seed,
        max_sessions=max_sessions,
    ).checked()
    zygote = ZygoteProcess(settings)
    served = False
    try:
        from rstar_protos.service import serve_settings
        from rstar_sandbox.service import serve_sandbox

        serving = serve_settings(listen, tls_cert, tls_key, tls_client_ca, token_file, metrics_port, watch_parent)
        served = True
        asyncio.run(serve_sandbox(settings, serving, zygote))
    finally:
        if not served:
            zygote.stop()


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
    limits = Limits(wall_seconds=timeout, memory_bytes=int(memory_mb * MIB)).checked()
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
    programs: Annotated[Path, typer.Argument(help="JSONL: id, code, optional stdin, timeout_s, memory_mb.")],
    results: Annotated[Path, typer.Argument(help="JSONL, one line for each program, in the order they finish.")],
    endpoint: Endpoint = "embedded",
    slots: Annotated[int, typer.Option(help="Embedded: programs at the same time; 0: twice the cores.")] = 0,
    token_file: TokenFile = None,
) -> None:
    """Run a file of programs and write a file of results."""
    from rstar_sandbox.batch import read_programs, run_batch

    requests = read_programs(programs)
    counts = run_batch(requests, results, endpoint, slots or None, _security(token_file))
    summary = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    print(f"{len(requests)} programs: {summary or 'none'} -> {results}")


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
        raise UserInputError("file", str(path), "give a program in UTF-8") from error


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UserInputError("file", str(path), f"it cannot be read ({error.strerror})") from error


def main() -> None:
    """Entry point of the command line."""
    run(app)
