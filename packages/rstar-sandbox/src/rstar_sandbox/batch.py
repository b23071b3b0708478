"""A file of programs in, a file of results out."""

from __future__ import annotations

import asyncio
import collections
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from rstar_protos.errors import ServiceUnavailableError, UserInputError
from rstar_protos.jsonl import format_line, read_rows
from rstar_protos.sandbox.v1 import sandbox_pb2
from rstar_protos.service import EMBEDDED, ClientSecurity
from rstar_sandbox.client import SandboxClient, execute_request
from rstar_sandbox.limits import limits_given
from rstar_sandbox.sandbox import Sandbox

__all__ = ["read_programs", "run_batch"]

_FIELDS = {"id": (str, int), "code": (str,), "stdin": (str,), "timeout_s": (int, float), "memory_mb": (int, float)}
_STREAMS_THAT_MAY_BREAK = 5
_WORDS = {str: "a text", int: "a whole number", float: "a number"}


def read_programs(path: Path) -> list[sandbox_pb2.ExecuteRequest]:
    """Reads a JSONL file of programs.

    Raises:
        UserInputError: an unreadable file, or a line that is not a program; names the line.
    """
    requests: dict[str, sandbox_pb2.ExecuteRequest] = {}
    for _, where, row in read_rows(path, "programs"):
        request = _request(row, where)
        if request.request_id in requests:
            raise UserInputError(f"{where}: id", request.request_id, "an id of its own for each program")
        requests[request.request_id] = request
    return list(requests.values())


def run_batch(
    requests: list[sandbox_pb2.ExecuteRequest],
    results: Path,
    endpoint: str = EMBEDDED,
    slots: int | None = None,
    security: ClientSecurity | None = None,
) -> dict[str, int]:
    """Runs programs and writes their results as they finish, each line flushed.

    Returns:
        How many ended with each status.
    """
    try:
        file = results.open("w", encoding="utf-8")
    except OSError as error:
        raise UserInputError("results", str(results), f"a file that can be written ({error.strerror})") from error
    with file:
        if endpoint != EMBEDDED:
            return asyncio.run(_run(requests, file, endpoint, security))
        with Sandbox(slots=slots) as sandbox:
            return asyncio.run(_run(requests, file, sandbox.endpoint, None))


async def _run(
    requests: list[sandbox_pb2.ExecuteRequest], file: IO[str], endpoint: str, security: ClientSecurity | None
) -> dict[str, int]:
    pending = {request.request_id: request for request in requests}
    counts: collections.Counter[str] = collections.Counter()
    console = Console(stderr=True)
    columns = (TextColumn("programs"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("programs", total=len(requests))
        async with SandboxClient(endpoint, security=security) as client:
            broken = 0
            while pending:
                await client.capacity()  # waits, within the client's patience, for a service that is away
                try:
                    async for result in client.run_many(list(pending.values())):
                        del pending[result.request_id]
                        counts[result.status.value] += 1
                        file.write(format_line(result.to_json_dict()))
                        file.flush()
                        progress.advance(bar)
                except ServiceUnavailableError:
                    broken += 1
                    if broken >= _STREAMS_THAT_MAY_BREAK:
                        raise
    return dict(counts)


def _request(data: dict[str, Any], where: str) -> sandbox_pb2.ExecuteRequest:
    _check_fields(data, where)
    limits = limits_given(
        data.get("timeout_s") or 0,
        data.get("memory_mb") or 0,
        seconds_field=f"{where}: timeout_s",
        memory_field=f"{where}: memory_mb",
    )
    return execute_request(data["code"], data.get("stdin") or "", limits, request_id=str(data["id"]))


def _check_fields(data: dict[str, Any], where: str) -> None:
    for name in ("id", "code"):
        if data.get(name) in (None, "") and not (name == "code" and data.get(name) == ""):
            raise UserInputError.message(f"{where}: {name} is missing")
    for name, value in data.items():
        accepted: Iterable[type] = _FIELDS.get(name, ())
        if not accepted:
            raise UserInputError(f"{where}: field", name, f"one of {', '.join(_FIELDS)}")
        if value is not None and (isinstance(value, bool) or not isinstance(value, tuple(accepted))):
            raise UserInputError(f"{where}: {name}", value, " or ".join(_WORDS[kind] for kind in accepted))
