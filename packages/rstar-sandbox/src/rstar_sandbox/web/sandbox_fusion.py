"""The shapes of SandboxFusion's `/run_code` (bytedance/SandboxFusion, `sandbox/server/sandbox_api.py`), Python only.

What differs from a real one: the traceback is appended to `stderr`, where a plain interpreter prints it; the value of a
last expression is not shown; `compile_result` is always null.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

from rstar_protos.errors import UserInputError
from rstar_protos.sandbox.v1 import sandbox_pb2
from rstar_sandbox.client import execute_request
from rstar_sandbox.limits import MIB, Limits
from rstar_sandbox.status import Status
from rstar_sandbox.web.fields import field, text_or_none

__all__ = ["request_from_body", "response_body", "sandbox_error", "stderr_of"]

_DEFAULT_SECONDS = 10.0
_KILLED = 9


def request_from_body(body: dict[str, Any]) -> sandbox_pb2.ExecuteRequest:
    """The program that a body of `/run_code` asks for.

    Raises:
        UserInputError: a field that cannot be used, or a language other than Python.
    """
    language = field(body, "language", str)
    if language != "python":
        raise UserInputError("language", language, "python, the only language of this service")
    seconds = field(body, "run_timeout", float, _DEFAULT_SECONDS)
    memory = field(body, "memory_limit_MB", float, -1.0)
    return execute_request(
        field(body, "code", str),
        text_or_none(body, "stdin") or "",
        Limits(wall_seconds=seconds, memory_bytes=int(memory * MIB) if memory > 0 else 0),
        {path: _decoded(path, content) for path, content in field(body, "files", dict, {}).items()},
        [_text(path) for path in field(body, "fetch_files", list, [])],
    )


def response_body(response: sandbox_pb2.ExecuteResponse) -> dict[str, Any]:
    """The body that answers `/run_code`."""
    status = Status.from_proto(response.status)
    if status is Status.UNAVAILABLE:
        return sandbox_error(response.detail)
    timed_out = status is Status.TIMEOUT
    return_code = None if timed_out else _return_code(response, status)
    return {
        "status": "Success" if return_code == 0 else "Failed",
        "message": "",
        "compile_result": None,
        "run_result": {
            "status": "TimeLimitExceeded" if timed_out else "Finished",
            "execution_time": response.timing.wall_seconds,
            "return_code": return_code,
            "stdout": response.stdout.decode("utf-8", "replace"),
            "stderr": stderr_of(response),
        },
        "executor_pod_name": None,
        "files": {file.path: base64.b64encode(file.content).decode() for file in response.files},
    }


def sandbox_error(message: str) -> dict[str, Any]:
    """The body that says that the service is to blame, not the program."""
    return {
        "status": "SandboxError",
        "message": message,
        "compile_result": None,
        "run_result": None,
        "executor_pod_name": None,
        "files": {},
    }


def stderr_of(response: sandbox_pb2.ExecuteResponse) -> str:
    """Standard error with the traceback after it, as a plain interpreter leaves it."""
    text = response.stderr.decode("utf-8", "replace")
    if response.HasField("traceback") and response.traceback:
        text += ("\n" if text and not text.endswith("\n") else "") + response.traceback
    return text


def _return_code(response: sandbox_pb2.ExecuteResponse, status: Status) -> int:
    if status is Status.OK:
        return 0
    if response.HasField("signal"):
        return -response.signal
    if response.HasField("exit_code") and response.exit_code:
        return response.exit_code
    return 1 if status is Status.ERROR else -_KILLED


def _decoded(path: str, content: Any) -> bytes:
    try:
        return base64.b64decode(content or "", validate=True)
    except (binascii.Error, ValueError, TypeError) as error:
        raise UserInputError.message(f"files: {path}: give its content in base64") from error


def _text(path: Any) -> str:
    if not isinstance(path, str):
        raise UserInputError("fetch_files", path, "a list of paths")
    return path
