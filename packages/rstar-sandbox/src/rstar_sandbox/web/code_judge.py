"""The shapes of code-judge's `/run` and `/run/long-batch` (0xWJ/code-judge, `app/model.py`), Python only.

An infrastructure fault is answered with the reason `queue_timeout`, which clients of code-judge send again; the
reason `internal_error` they would show to the model.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Any

from rstar_protos.errors import UserInputError
from rstar_protos.sandbox.v1 import sandbox_pb2
from rstar_sandbox.client import execute_request
from rstar_sandbox.status import Status
from rstar_sandbox.web.fields import field, text_or_none
from rstar_sandbox.web.sandbox_fusion import stderr_of

__all__ = ["Submission", "batch_from_body", "without_output"]


@dataclass(frozen=True)
class Submission:
    """One program of a client of code-judge."""

    sub_id: str
    request: sandbox_pb2.ExecuteRequest | None
    """None: a kind of program that this service does not run."""
    expected_output: str | None

    @classmethod
    def from_body(cls, body: Any) -> Submission:
        """Reads a submission.

        Raises:
            UserInputError: a field that cannot be used.
        """
        if not isinstance(body, dict):
            raise UserInputError("submission", body, "an object")
        kind = field(body, "type", str)
        if kind not in ("python", "cpp", "math"):
            raise UserInputError("type", kind, "python")
        program = execute_request(field(body, "solution", str), text_or_none(body, "input") or "")
        return cls(
            text_or_none(body, "sub_id") or str(uuid.uuid4()),
            program if kind == "python" else None,
            text_or_none(body, "expected_output"),
        )

    def result(self, response: sandbox_pb2.ExecuteResponse | None) -> dict[str, Any]:
        """The result of a program; None: it was not run for lack of room."""
        if self.request is None:
            return self._failed("invalid_input", "this service runs python only")
        if response is None:
            return self._failed("queue_timeout", None)
        status = Status.from_proto(response.status)
        if status is Status.UNAVAILABLE:
            return self._failed("queue_timeout", None)
        stdout = response.stdout.decode("utf-8", "replace")
        ran = status is Status.OK
        matches = self.expected_output is None or stdout.strip() == self.expected_output.strip()
        return {
            "sub_id": self.sub_id,
            "success": ran and matches,
            "run_success": ran,
            "cost": response.timing.wall_seconds,
            "stdout": stdout,
            "stderr": stderr_of(response),
            "reason": "worker_timeout" if status is Status.TIMEOUT else "",
        }

    def _failed(self, reason: str, stderr: str | None) -> dict[str, Any]:
        return {
            "sub_id": self.sub_id,
            "success": False,
            "run_success": False,
            "cost": 0.0,
            "stdout": None,
            "stderr": stderr,
            "reason": reason,
        }


def batch_from_body(body: dict[str, Any]) -> tuple[str, list[Submission]]:
    """The id and the submissions of a batch.

    Raises:
        UserInputError: no submissions, or one that cannot be used; names its place.
    """
    submissions = []
    for number, item in enumerate(field(body, "submissions", list)):
        try:
            submissions.append(Submission.from_body(item))
        except UserInputError as error:
            raise UserInputError.message(f"submissions.{number}.{error}") from error
    if not submissions:
        raise UserInputError("submissions", [], "at least one")
    return text_or_none(body, "sub_id") or str(uuid.uuid4()), submissions


def without_output(result: dict[str, Any]) -> dict[str, Any]:
    """What `/judge` answers: the verdict without the output."""
    return {name: value for name, value in result.items() if name not in ("stdout", "stderr")}
