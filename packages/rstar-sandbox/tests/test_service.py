"""The contract, through raw stubs against the real service."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import pytest

from rstar_protos.common.v1 import common_pb2
from rstar_protos.sandbox.v1 import sandbox_pb2
from rstar_protos.sandbox.v1.sandbox_pb2_grpc import SandboxServiceStub
from rstar_protos.service import RETRY_AFTER_KEY
from rstar_sandbox.levels import LEVELS

pytestmark = pytest.mark.timeout(180)

Request = sandbox_pb2.ExecuteRequest
Until = Callable[[Callable[[], Any]], Awaitable[None]]


def _request(code: str, wall_seconds: float = 0.0, request_id: str | None = None) -> Request:
    limits = sandbox_pb2.Limits(wall_seconds=wall_seconds)
    return Request(request_id=uuid.uuid4().hex if request_id is None else request_id, code=code, limits=limits)


async def _capacity(stub: SandboxServiceStub) -> tuple[int, int]:
    capacity = await stub.GetCapacity(sandbox_pb2.GetCapacityRequest())
    return capacity.running, capacity.queued


def _busy(stub: SandboxServiceStub, running: int, queued: int) -> Callable[[], Awaitable[bool]]:
    async def check() -> bool:
        return await _capacity(stub) == (running, queued)

    return check


async def test_an_answer_carries_every_field(stub: SandboxServiceStub) -> None:
    request = _request("print('out'); import sys; print('err', file=sys.stderr); 2 + 3")
    response = await stub.Execute(request)
    assert response.request_id == request.request_id
    assert response.status == common_pb2.TOOL_STATUS_OK
    assert (response.stdout, response.stderr, response.value) == (b"out\n", b"err\n", "5")
    assert (response.stdout_bytes, response.stderr_bytes) == (4, 4)
    assert response.exit_code == 0
    assert not response.HasField("traceback")
    assert not response.HasField("signal")
    assert response.timing.wall_seconds > 0
    assert response.timing.cpu_seconds > 0
    assert response.timing.peak_memory_bytes > 1_000_000
    assert response.timing.exec.wall_seconds == response.timing.wall_seconds
    assert response.timing.fork.cpu_seconds > 0
    assert response.tier == "standard"
    assert response.isolation in LEVELS


async def test_the_same_id_again_returns_the_first_result(stub: SandboxServiceStub) -> None:
    request = _request("import os; os.urandom(8).hex()")
    first = await stub.Execute(request)
    assert first.value
    assert await stub.Execute(request) == first


async def test_the_same_id_while_running_joins(stub: SandboxServiceStub) -> None:
    request = _request("import os, time; time.sleep(0.3); os.urandom(8).hex()")
    first, second = await asyncio.gather(stub.Execute(request), stub.Execute(request))
    assert first.value == second.value


async def test_an_id_used_for_another_program_is_refused(stub: SandboxServiceStub) -> None:
    request = _request("1")
    await stub.Execute(request)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stub.Execute(_request("2", request_id=request.request_id))
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_requests_without_an_id_are_told_apart(stub: SandboxServiceStub) -> None:
    one, two = await asyncio.gather(
        stub.Execute(_request("1", request_id="")), stub.Execute(_request("2", request_id=""))
    )
    assert (one.value, two.value) == ("1", "2")


async def test_one_caller_leaving_does_not_harm_the_other(stub: SandboxServiceStub, until: Until) -> None:
    request = _request("import time; time.sleep(1); 'kept'")
    leaving, staying = stub.Execute(request), stub.Execute(request)
    await until(_busy(stub, 1, 0))
    leaving.cancel()
    assert (await staying).value == "'kept'"


@pytest.mark.parametrize(
    "request_",
    [
        Request(request_id="a", limits=sandbox_pb2.Limits(wall_seconds=-1)),
        Request(request_id="b", limits=sandbox_pb2.Limits(cpu_seconds=float("nan"))),
        Request(request_id="c", files=[sandbox_pb2.File(path="../x")]),
        Request(request_id="d", files=[sandbox_pb2.File(path="/etc/x")]),
        Request(request_id="e", collect_paths=["a/../../b"]),
    ],
)
async def test_unusable_requests_are_refused_by_name(stub: SandboxServiceStub, request_: Request) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stub.Execute(request_)
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert any(name in (refused.value.details() or "") for name in ("limits.", "files"))


async def test_files_go_in_and_come_out(stub: SandboxServiceStub) -> None:
    request = _request("data = open('in/data.bin', 'rb').read(); open('out.bin', 'wb').write(data[::-1])")
    request.files.append(sandbox_pb2.File(path="in/data.bin", content=b"\x00\x01\xff"))
    request.collect_paths.extend(["out.bin", "missing"])
    response = await stub.Execute(request)
    assert [(file.path, file.content) for file in response.files] == [("out.bin", b"\xff\x01\x00")]
    assert "missing" in response.detail


async def test_links_do_not_bring_files_of_the_machine_out(stub: SandboxServiceStub) -> None:
    request = _request("import os; os.symlink('/etc/passwd', 'out'); os.symlink('/etc', 'folder')")
    request.collect_paths.extend(["out", "folder/passwd"])
    response = await stub.Execute(request)
    assert response.status == common_pb2.TOOL_STATUS_OK
    assert list(response.files) == []


async def test_many_programs_answer_as_they_finish(stub: SandboxServiceStub) -> None:
    slow, quick = _request("import time; time.sleep(1); 'slow'"), [_request(str(number)) for number in range(20)]

    async def requests() -> AsyncIterator[Request]:
        for request in (slow, *quick):
            yield request

    answers = [answer async for answer in stub.ExecuteMany(requests())]
    assert {answer.request_id: answer.value for answer in answers} == {
        slow.request_id: "'slow'",
        **{request.request_id: str(number) for number, request in enumerate(quick)},
    }
    assert answers[0].request_id != slow.request_id


async def test_a_stream_answers_before_its_requests_end(stub: SandboxServiceStub) -> None:
    call = stub.ExecuteMany()
    for number in range(3):
        await call.write(_request(str(number)))
        answer = await call.read()
        assert answer.value == str(number)
    await call.done_writing()
    assert await call.read() == grpc.aio.EOF


async def test_a_stream_waits_for_room_where_a_single_call_is_refused(small: SandboxServiceStub) -> None:
    requests = [_request(str(number)) for number in range(30)]
    answers = [answer async for answer in small.ExecuteMany(requests)]
    assert sorted(answer.value for answer in answers) == sorted(str(number) for number in range(30))


async def test_a_stream_refuses_a_request_without_an_id(stub: SandboxServiceStub) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        async for _ in stub.ExecuteMany([_request("1", request_id="")]):
            pass
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT


async def test_a_full_queue_refuses_with_a_hint_when_to_come_back(small: SandboxServiceStub, until: Until) -> None:
    blockers = [small.Execute(_request("import time; time.sleep(60)", 60)) for _ in range(2)]
    await until(_busy(small, 1, 1))
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await small.Execute(_request("1"))
    assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    # Pair by pair: in older versions of grpcio the metadata is not a mapping that dict() can read.
    (hint,) = (value for key, value in refused.value.trailing_metadata() or () if key == RETRY_AFTER_KEY)
    assert int(hint) > 0
    for blocker in blockers:
        blocker.cancel()


async def test_cancelling_kills_the_program_and_frees_the_slot(small: SandboxServiceStub, until: Until) -> None:
    call = small.Execute(_request("import time; time.sleep(60)", 60))
    await until(_busy(small, 1, 0))
    call.cancel()
    answer = await small.Execute(_request("'free'"), timeout=30)
    assert answer.value == "'free'"


async def test_a_cancelled_waiter_leaves_the_queue(small: SandboxServiceStub, until: Until) -> None:
    blocker = small.Execute(_request("import time; time.sleep(60)", 60))
    await until(_busy(small, 1, 0))
    waiter = small.Execute(_request("1"))
    await until(_busy(small, 1, 1))
    waiter.cancel()
    await until(_busy(small, 1, 0))
    blocker.cancel()


async def test_a_deadline_ends_the_call_and_frees_the_slot(small: SandboxServiceStub) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await small.Execute(_request("import time; time.sleep(60)", 60), timeout=0.5)
    assert ended.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
    assert (await small.Execute(_request("1"), timeout=30)).value == "1"


async def test_a_cancelled_stream_frees_its_slots(small: SandboxServiceStub, until: Until) -> None:
    call = small.ExecuteMany([_request("import time; time.sleep(60)", 60) for _ in range(3)])
    await until(_busy(small, 1, 2))
    call.cancel()
    assert (await small.Execute(_request("1"), timeout=30)).value == "1"


async def test_time_in_the_queue_is_no_time_of_the_program(small: SandboxServiceStub, until: Until) -> None:
    first = asyncio.ensure_future(small.Execute(_request("import time; time.sleep(1)")))
    await until(_busy(small, 1, 0))
    second = await small.Execute(_request("1", wall_seconds=0.9))
    await first
    assert second.status == common_pb2.TOOL_STATUS_OK
    assert second.timing.queue_seconds > 0.3
    assert second.timing.wall_seconds < 0.9


async def test_capacity_tells_slots_and_isolation(small: SandboxServiceStub) -> None:
    capacity = await small.GetCapacity(sandbox_pb2.GetCapacityRequest())
    assert (capacity.slots, capacity.queue_limit, capacity.queued) == (1, 1, 0)
    assert capacity.isolation == "limits"
    assert capacity.version


async def test_a_client_that_floods_is_refused_and_one_that_has_little_waiting_is_not(
    small: SandboxServiceStub, until: Until
) -> None:
    def named(client: str) -> tuple[tuple[str, str]]:
        return (("rstar-client", client),)

    blocker = small.Execute(_request("import time; time.sleep(60)", 60), metadata=named("flood"))
    await until(_busy(small, 1, 0))
    waiting = small.Execute(_request("'first'", 60), metadata=named("flood"))
    await until(_busy(small, 1, 1))
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await small.Execute(_request("'second'"), metadata=named("flood"))
    assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    streamed = small.ExecuteMany([_request("'streamed'")], metadata=named("quiet"))
    await until(_busy(small, 1, 2))
    blocker.cancel()
    assert [answer.value async for answer in streamed] == ["'streamed'"]
    assert (await waiting).value == "'first'"
