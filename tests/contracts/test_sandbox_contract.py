"""SandboxService: typed results, streams keyed by id, retries that run nothing twice, cancellation, sessions."""

import time
import uuid

import grpc
import pytest

from rstar_protos.common.v1 import common_pb2
from rstar_protos.sandbox.v1 import sandbox_pb2, sandbox_pb2_grpc

SERVICES = ("sandbox",)

Request = sandbox_pb2.ExecuteRequest


@pytest.fixture
def stub(channel):
    return sandbox_pb2_grpc.SandboxServiceStub(channel)


def limits(seconds):
    return sandbox_pb2.Limits(wall_seconds=seconds)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("print(6*7)", "OK"),
        ("1/0", "ERROR"),
        ("import time; print('before'); time.sleep(60)", "TIMEOUT"),
        ("import os; os._exit(3)", "CRASHED"),
        ("b = bytearray(1 << 40)", "ERROR MEMORY_LIMIT"),
    ],
)
def test_end_of_a_program_is_typed(stub, code, status):
    response = stub.Execute(Request(request_id=uuid.uuid4().hex, code=code, limits=limits(1.0)), timeout=60)
    assert common_pb2.ToolStatus.Name(response.status).removeprefix("TOOL_STATUS_") in status.split()


def test_output_stdin_and_value_come_back(stub):
    code = "print(input() + '!')\n6*7"
    response = stub.Execute(Request(request_id=uuid.uuid4().hex, code=code, stdin=b"hello"), timeout=60)
    assert (response.stdout, response.value) == (b"hello!\n", "42")


def test_text_printed_before_a_timeout_is_there(stub):
    code = "import time; print('before', end=''); time.sleep(60)"
    response = stub.Execute(Request(request_id=uuid.uuid4().hex, code=code, limits=limits(0.5)), timeout=60)
    assert response.status == common_pb2.TOOL_STATUS_TIMEOUT
    assert response.stdout == b"before"


def test_results_of_a_stream_come_as_they_finish_and_carry_their_ids(stub):
    prefix = uuid.uuid4().hex
    slow = Request(request_id=f"{prefix}-slow", code="import time; time.sleep(1.5); print('slow')", limits=limits(20))
    quick = [Request(request_id=f"{prefix}-{number}", code=f"print({number})") for number in range(6)]
    responses = list(stub.ExecuteMany(iter([slow, *quick]), timeout=120))
    assert [response.request_id for response in responses][-1] == f"{prefix}-slow"
    outputs = {response.request_id: response.stdout.decode().strip() for response in responses}
    assert outputs == {f"{prefix}-slow": "slow", **{f"{prefix}-{number}": str(number) for number in range(6)}}


def test_retry_with_the_same_id_runs_nothing_twice(stub):
    request = Request(request_id=uuid.uuid4().hex, code="import uuid; print(uuid.uuid4())")
    first = stub.Execute(request, timeout=60)
    assert stub.Execute(request, timeout=60).stdout == first.stdout
    assert next(stub.ExecuteMany(iter([request]), timeout=60)).stdout == first.stdout


def test_retry_beside_the_first_attempt_runs_nothing_twice(stub):
    code = "import time, uuid; time.sleep(0.5); print(uuid.uuid4())"
    request = Request(request_id=uuid.uuid4().hex, code=code)
    attempts = [stub.Execute.future(request, timeout=60) for _ in range(3)]
    assert len({attempt.result().stdout for attempt in attempts}) == 1


def test_id_of_another_request_is_refused(stub):
    request_id = uuid.uuid4().hex
    stub.Execute(Request(request_id=request_id, code="1"), timeout=60)
    with pytest.raises(grpc.RpcError) as caught:
        stub.Execute(Request(request_id=request_id, code="2"), timeout=60)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT


def running(stub):
    capacity = stub.GetCapacity(sandbox_pb2.GetCapacityRequest(), timeout=60)
    return capacity.running + capacity.queued


def test_deadline_of_the_caller_stops_the_program(stub, eventually):
    request = Request(request_id=uuid.uuid4().hex, code="import time; time.sleep(60)", limits=limits(60))
    started = time.monotonic()
    with pytest.raises(grpc.RpcError) as caught:
        stub.Execute(request, timeout=0.7)
    assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    assert time.monotonic() - started < 20
    eventually(lambda: running(stub) == 0, "the slot is free")


def test_cancelled_call_frees_its_slot(stub, eventually):
    request = Request(request_id=uuid.uuid4().hex, code="import time; time.sleep(60)", limits=limits(60))
    call = stub.Execute.future(request)
    eventually(lambda: running(stub) == 1, "the program runs")
    call.cancel()
    eventually(lambda: running(stub) == 0, "the slot is free")


def test_cancelled_stream_frees_its_slots(stub, eventually):
    prefix = uuid.uuid4().hex
    requests = [
        Request(request_id=f"{prefix}-{number}", code="import time; time.sleep(60)", limits=limits(60))
        for number in range(2)
    ]
    stream = stub.ExecuteMany(iter(requests))
    eventually(lambda: running(stub) == 2, "both programs run")
    stream.cancel()
    eventually(lambda: running(stub) == 0, "the slots are free")


def test_session_keeps_its_state_between_cells_and_ends_when_closed(stub):
    session = stub.OpenSession(sandbox_pb2.OpenSessionRequest(request_id=uuid.uuid4().hex), timeout=60).session_id

    def cell(code):
        request = Request(request_id=uuid.uuid4().hex, code=code)
        return stub.ExecuteCell(sandbox_pb2.ExecuteCellRequest(session_id=session, cell=request), timeout=60)

    cell("x = 20")
    assert cell("x + 1").value == "21"
    stub.CloseSession(sandbox_pb2.CloseSessionRequest(session_id=session), timeout=60)
    with pytest.raises(grpc.RpcError) as caught:
        cell("x")
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize("seconds", [-1.0, float("nan")])
def test_unusable_limits_are_refused_by_name(stub, seconds):
    with pytest.raises(grpc.RpcError) as caught:
        stub.Execute(Request(request_id=uuid.uuid4().hex, code="1", limits=limits(seconds)), timeout=60)
    assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "wall_seconds" in caught.value.details()
