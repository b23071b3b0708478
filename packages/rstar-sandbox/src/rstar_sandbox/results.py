"""What a caller gets back from running a program."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rstar_protos.sandbox.v1 import sandbox_pb2
from rstar_sandbox.status import Status

__all__ = ["ExecutionResult"]


@dataclass(frozen=True)
class ExecutionResult:
    """How one program ended and what it left."""

    request_id: str
    status: Status
    stdout: bytes
    """What it printed, an exact prefix of at most the limit; may hold bytes that are not UTF-8."""
    stderr: bytes
    value: str | None
    """`repr` of the last expression; None when there is none or it is None."""
    traceback: str | None
    """Of the exception that ended it, or the syntax error."""
    exit_code: int | None
    signal: int | None
    stdout_bytes: int
    """True sizes, before any cut."""
    stderr_bytes: int
    queue_seconds: float
    wall_seconds: float
    cpu_seconds: float
    peak_memory_bytes: int
    isolation: str
    files: dict[str, bytes] = field(default_factory=dict)
    state_lost: str | None = None
    """Sessions: why the state is gone; None: kept, or not a session."""
    detail: str = ""
    """For operators; never for a policy."""

    @property
    def ok(self) -> bool:
        """True when the program ran to its end."""
        return self.status is Status.OK

    @property
    def text(self) -> str:
        """Standard output as text, with bytes that are not UTF-8 replaced."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def stdout_truncated(self) -> bool:
        """True when standard output was cut."""
        return self.stdout_bytes > len(self.stdout)

    @property
    def stderr_truncated(self) -> bool:
        """True when standard error was cut."""
        return self.stderr_bytes > len(self.stderr)

    @classmethod
    def from_proto(cls, message: sandbox_pb2.ExecuteResponse) -> ExecutionResult:
        """From the contract's message."""
        lost = message.session_state == sandbox_pb2.SESSION_STATE_LOST
        return cls(
            request_id=message.request_id,
            status=Status.from_proto(message.status),
            stdout=message.stdout,
            stderr=message.stderr,
            value=message.value if message.HasField("value") else None,
            traceback=message.traceback if message.HasField("traceback") else None,
            exit_code=message.exit_code if message.HasField("exit_code") else None,
            signal=message.signal if message.HasField("signal") else None,
            stdout_bytes=message.stdout_bytes,
            stderr_bytes=message.stderr_bytes,
            queue_seconds=message.timing.queue_seconds,
            wall_seconds=message.timing.wall_seconds,
            cpu_seconds=message.timing.cpu_seconds,
            peak_memory_bytes=message.timing.peak_memory_bytes,
            isolation=message.isolation,
            files={file.path: file.content for file in message.files},
            state_lost=message.session_state_reason if lost else None,
            detail=message.detail,
        )

    def to_json_dict(self) -> dict[str, Any]:
        """One line of a batch's output; bytes that are not UTF-8 become replacement characters."""
        return {
            "id": self.request_id,
            "status": self.status.value,
            "stdout": self.text,
            "stderr": self.stderr.decode("utf-8", "replace"),
            "value": self.value,
            "traceback": self.traceback,
            "exit_code": self.exit_code,
            "signal": self.signal,
            "wall_ms": round(self.wall_seconds * 1000, 3),
            "queue_ms": round(self.queue_seconds * 1000, 3),
            "stdout_bytes": self.stdout_bytes,
            "stdout_truncated": self.stdout_truncated,
            "isolation": self.isolation,
        }
