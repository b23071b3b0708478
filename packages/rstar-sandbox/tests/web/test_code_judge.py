"""The shapes of code-judge's /run and /run/long-batch."""

from __future__ import annotations

from typing import Any

import pytest

from rstar_protos.errors import UserInputError
from rstar_protos.sandbox.v1 import sandbox_pb2
from rstar_sandbox.status import Status
from rstar_sandbox.web.code_judge import Submission, batch_from_body, without_output

Response = sandbox_pb2.ExecuteResponse


def _submission(**fields: Any) -> Submission:
    return Submission.from_body({"type": "python", "solution": "1", **fields})


def test_a_submission_becomes_a_program() -> None:
    submission = _submission(solution="print(input())", input="x", sub_id="mine")
    assert submission.request is not None
    assert (submission.sub_id, submission.request.code, submission.request.stdin) == ("mine", "print(input())", b"x")


def test_submissions_without_an_id_get_their_own() -> None:
    assert _submission().sub_id != _submission().sub_id


@pytest.mark.parametrize(
    ("expected_output", "stdout", "status", "verdict"),
    [
        (None, b"anything", Status.OK, (True, True)),
        (" 42\n", b"42", Status.OK, (True, True)),
        ("41", b"42", Status.OK, (False, True)),
        ("42", b"42", Status.ERROR, (False, False)),
        (None, b"", Status.TIMEOUT, (False, False)),
    ],
)
def test_success_takes_a_clean_end_and_the_expected_output(
    expected_output: str | None, stdout: bytes, status: Status, verdict: tuple[bool, bool]
) -> None:
    submission = _submission(expected_output=expected_output)
    result = submission.result(Response(status=status.to_proto(), stdout=stdout))
    assert (result["success"], result["run_success"]) == verdict


@pytest.mark.parametrize(
    ("response", "reason"),
    [
        (Response(status=Status.OK.to_proto()), ""),
        (Response(status=Status.ERROR.to_proto()), ""),
        (Response(status=Status.TIMEOUT.to_proto()), "worker_timeout"),
        (Response(status=Status.UNAVAILABLE.to_proto()), "queue_timeout"),
        (None, "queue_timeout"),
    ],
)
def test_infrastructure_faults_have_the_reason_that_clients_retry(response: Response | None, reason: str) -> None:
    assert _submission().result(response)["reason"] == reason


def test_another_language_is_invalid_input_and_spoils_no_batch() -> None:
    body = {"submissions": [{"type": "cpp", "solution": "x"}, {"type": "python", "solution": "1"}]}
    _, submissions = batch_from_body(body)
    assert submissions[0].request is None
    assert submissions[0].result(None)["reason"] == "invalid_input"
    assert submissions[1].request is not None


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({}, "submissions"),
        ({"submissions": []}, "submissions"),
        ({"submissions": [1]}, "submissions.0"),
        ({"submissions": [{"type": "python", "solution": "1"}, {"type": "python"}]}, "submissions.1.solution"),
        ({"submissions": [{"type": "brainfuck", "solution": "1"}]}, "type"),
    ],
)
def test_a_batch_that_cannot_be_used_names_the_place(body: dict[str, Any], named: str) -> None:
    with pytest.raises(UserInputError, match=named):
        batch_from_body(body)


def test_a_verdict_has_no_output() -> None:
    result = without_output(_submission().result(Response(status=Status.OK.to_proto(), stdout=b"x")))
    assert set(result) == {"sub_id", "success", "run_success", "cost", "reason"}
