"""The shapes of SandboxFusion's /run_code."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from rstar_protos.errors import UserInputError
from rstar_protos.sandbox.v1 import sandbox_pb2
from rstar_sandbox.status import Status
from rstar_sandbox.web.sandbox_fusion import request_from_body, response_body

Response = sandbox_pb2.ExecuteResponse


def test_a_body_becomes_a_program_with_its_limits_and_files() -> None:
    body = {
        "code": "print(1)",
        "language": "python",
        "stdin": "in",
        "run_timeout": 3,
        "memory_limit_MB": 64,
        "files": {"a.txt": base64.b64encode(b"content").decode()},
        "fetch_files": ["out.txt"],
        "compile_timeout": 5,
        "args": [],
    }
    request = request_from_body(body)
    assert (request.code, request.stdin) == ("print(1)", b"in")
    assert (request.limits.wall_seconds, request.limits.memory_bytes) == (3.0, 64 * 2**20)
    assert [(file.path, file.content) for file in request.files] == [("a.txt", b"content")]
    assert list(request.collect_paths) == ["out.txt"]


def test_the_smallest_body_has_the_defaults_of_the_original() -> None:
    request = request_from_body({"code": "1", "language": "python"})
    assert (request.limits.wall_seconds, request.limits.memory_bytes, request.stdin) == (10.0, 0, b"")


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"language": "python"}, "code"),
        ({"code": "1"}, "language"),
        ({"code": "1", "language": "cpp"}, "cpp"),
        ({"code": 1, "language": "python"}, "code"),
        ({"code": "1", "language": "python", "run_timeout": "x"}, "run_timeout"),
        ({"code": "1", "language": "python", "run_timeout": True}, "run_timeout"),
        ({"code": "1", "language": "python", "files": {"a": "not base64!"}}, "files"),
        ({"code": "1", "language": "python", "fetch_files": [1]}, "fetch_files"),
    ],
)
def test_a_field_that_cannot_be_used_is_named(body: dict[str, Any], named: str) -> None:
    with pytest.raises(UserInputError, match=named):
        request_from_body(body)


@pytest.mark.parametrize(
    ("status", "fields", "expected"),
    [
        (Status.OK, {"exit_code": 0}, ("Success", "Finished", 0)),
        (Status.ERROR, {"traceback": "T", "exit_code": 1}, ("Failed", "Finished", 1)),
        (Status.CRASHED, {"exit_code": 3}, ("Failed", "Finished", 3)),
        (Status.CRASHED, {"signal": 11}, ("Failed", "Finished", -11)),
        (Status.MEMORY_LIMIT, {}, ("Failed", "Finished", -9)),
        (Status.TIMEOUT, {"signal": 9}, ("Failed", "TimeLimitExceeded", None)),
    ],
)
def test_an_end_has_the_status_and_code_of_the_original(
    status: Status, fields: dict[str, Any], expected: tuple[str, str, int | None]
) -> None:
    body = response_body(Response(status=status.to_proto(), **fields))
    assert (body["status"], body["run_result"]["status"], body["run_result"]["return_code"]) == expected


def test_an_infrastructure_fault_is_no_result() -> None:
    body = response_body(Response(status=Status.UNAVAILABLE.to_proto(), detail="why"))
    assert (body["status"], body["message"], body["run_result"]) == ("SandboxError", "why", None)


def test_the_traceback_follows_standard_error() -> None:
    body = response_body(Response(status=Status.ERROR.to_proto(), stderr=b"warned", traceback="Traceback\n"))
    assert body["run_result"]["stderr"] == "warned\nTraceback\n"
