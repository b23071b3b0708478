"""Between the contract's messages and the package's own types."""

from __future__ import annotations

from rstar_protos.errors import UserInputError
from rstar_protos.sandbox.v1 import sandbox_pb2
from rstar_sandbox.files import UnusablePathError, check_relative_path
from rstar_sandbox.limits import Limits
from rstar_sandbox.messages import Job, Outcome
from rstar_sandbox.settings import SandboxSettings
from rstar_sandbox.status import Status

__all__ = ["check_request", "job_from_proto", "limits_from_proto", "limits_to_proto", "response_from_outcome"]


def limits_from_proto(message: sandbox_pb2.Limits) -> Limits:
    """The limits of a request, zeros as they are.

    Raises:
        UserInputError: a negative or not finite limit.
    """
    return Limits(
        wall_seconds=message.wall_seconds,
        cpu_seconds=message.cpu_seconds,
        memory_bytes=message.memory_bytes,
        max_stdout_bytes=message.max_stdout_bytes,
        max_stderr_bytes=message.max_stderr_bytes,
    ).checked()


def limits_to_proto(limits: Limits) -> sandbox_pb2.Limits:
    """The contract's form of limits."""
    return sandbox_pb2.Limits(
        wall_seconds=limits.wall_seconds,
        cpu_seconds=limits.cpu_seconds,
        memory_bytes=limits.memory_bytes,
        max_stdout_bytes=limits.max_stdout_bytes,
        max_stderr_bytes=limits.max_stderr_bytes,
    )


def check_request(request: sandbox_pb2.ExecuteRequest) -> None:
    """Refuses a request that no worker could run, before it waits for one.

    Raises:
        UserInputError: a limit or a path that cannot be used.
    """
    if request.HasField("limits"):
        limits_from_proto(request.limits)
    if request.files or request.collect_paths:
        _check_paths(request)


def job_from_proto(
    request: sandbox_pb2.ExecuteRequest, settings: SandboxSettings, defaults: Limits | None = None
) -> Job:
    """A job with complete limits.

    Args:
        request: from a client.
        settings: of the service.
        defaults: limits for those the request leaves out; None: the service's.

    Raises:
        UserInputError: a limit or a path that cannot be used.
    """
    asked = limits_from_proto(request.limits)
    limits = asked.over(defaults or settings.defaults, settings.ceiling)
    if asked.wall_seconds and not asked.cpu_seconds and asked.wall_seconds > limits.cpu_seconds:
        # Who asks for more time without a word about CPU time means both.
        limits = Limits(cpu_seconds=limits.wall_seconds).over(limits, settings.ceiling)
    _check_paths(request)
    return Job(
        code=request.code,
        stdin=request.stdin,
        limits=limits,
        files={file.path: file.content for file in request.files},
        collect=tuple(request.collect_paths),
        seed=settings.seed,
    )


def response_from_outcome(
    request_id: str, outcome: Outcome, queue_seconds: float, isolation: str
) -> sandbox_pb2.ExecuteResponse:
    """The contract's form of an outcome."""
    return sandbox_pb2.ExecuteResponse(
        request_id=request_id,
        status=Status(outcome.status).to_proto(),
        stdout=outcome.stdout,
        stderr=outcome.stderr,
        value=outcome.value,
        traceback=outcome.traceback,
        exit_code=outcome.exit_code,
        signal=outcome.signal,
        stdout_bytes=outcome.stdout_bytes,
        stderr_bytes=outcome.stderr_bytes,
        stdout_truncated=outcome.stdout_bytes > len(outcome.stdout),
        stderr_truncated=outcome.stderr_bytes > len(outcome.stderr),
        timing=sandbox_pb2.Timing(
            queue_seconds=queue_seconds,
            wall_seconds=outcome.wall_seconds,
            cpu_seconds=outcome.cpu_seconds,
            peak_memory_bytes=outcome.peak_memory_bytes,
            forked_ahead=outcome.forked_ahead,
            leaked_processes=outcome.leaked_processes,
            **{
                name: sandbox_pb2.Phase(wall_seconds=wall, cpu_seconds=cpu)
                for name, (wall, cpu) in outcome.phases.items()
            },
        ),
        tier=outcome.tier,
        isolation=outcome.isolation or isolation,
        files=[sandbox_pb2.File(path=path, content=content) for path, content in outcome.files.items()],
        detail=outcome.detail,
    )


def _check_paths(request: sandbox_pb2.ExecuteRequest) -> None:
    try:
        for path in (*(file.path for file in request.files), *request.collect_paths):
            check_relative_path(path)
    except UnusablePathError as problem:
        raise UserInputError.message(f"files: {problem}") from problem
