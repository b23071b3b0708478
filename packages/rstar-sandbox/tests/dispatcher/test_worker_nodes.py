"""A dispatcher and worker nodes, each a process of its own, that die, drain and come back."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol

import grpc
import grpc.aio
import pytest

from rstar_protos.common.v1 import common_pb2
from rstar_protos.sandbox.v1 import sandbox_pb2
from rstar_protos.sandbox.v1.sandbox_pb2_grpc import SandboxServiceStub, SandboxWorkerServiceStub
from rstar_protos.service import call_with_retry, open_channel

pytestmark = pytest.mark.timeout(300)

Request = sandbox_pb2.ExecuteRequest
Until = Callable[[Callable[[], Any]], Awaitable[None]]
Killed = Callable[[subprocess.Popen[str]], None]


class Processes(Protocol):
    endpoint: str

    def dispatcher(self, *options: str) -> subprocess.Popen[str]: ...
    def worker(self, name: str, *options: str, slots: int = 2) -> subprocess.Popen[str]: ...


@pytest.fixture
async def stub(processes: Processes) -> AsyncIterator[SandboxServiceStub]:
    async with open_channel(processes.endpoint) as channel:
        yield SandboxServiceStub(channel)


def _request(code: str, wall_seconds: float = 0.0) -> Request:
    limits = sandbox_pb2.Limits(wall_seconds=wall_seconds)
    return Request(request_id=uuid.uuid4().hex, code=code, limits=limits)


async def _capacity(stub: SandboxServiceStub) -> sandbox_pb2.GetCapacityResponse:
    return await stub.GetCapacity(sandbox_pb2.GetCapacityRequest(), wait_for_ready=True)


def _workers(stub: SandboxServiceStub, count: int) -> Callable[[], Awaitable[bool]]:
    async def check() -> bool:
        return (await _capacity(stub)).workers == count

    return check


def _running(stub: SandboxServiceStub, count: int) -> Callable[[], Awaitable[bool]]:
    async def check() -> bool:
        return (await _capacity(stub)).running == count

    return check


async def test_a_node_killed_in_the_middle_costs_no_answer_and_its_sessions_are_lost_for_sure(
    processes: Processes, stub: SandboxServiceStub, until: Until, killed: Killed
) -> None:
    processes.dispatcher()
    dying = processes.worker("dying")
    await until(_workers(stub, 1))
    session = (await stub.OpenSession(sandbox_pb2.OpenSessionRequest(request_id="s"))).session_id
    kept = await stub.ExecuteCell(sandbox_pb2.ExecuteCellRequest(session_id=session, cell=_request("x = 20\nx + 1")))
    assert kept.value == "21"
    processes.worker("staying")
    await until(_workers(stub, 2))

    requests = [_request(f"import time; time.sleep(0.05); print({number} * 7)") for number in range(60)]
    calls = [asyncio.ensure_future(stub.Execute(request)) for request in requests]
    await until(_running(stub, 4))
    killed(dying)
    answers = await asyncio.gather(*calls)
    assert [answer.stdout for answer in answers] == [f"{number * 7}\n".encode() for number in range(60)]
    assert [answer.request_id for answer in answers] == [request.request_id for request in requests]

    with pytest.raises(grpc.aio.AioRpcError) as lost:
        await stub.ExecuteCell(sandbox_pb2.ExecuteCellRequest(session_id=session, cell=_request("x")))
    assert lost.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert "worker was lost" in (lost.value.details() or "")


async def test_a_cell_that_runs_when_its_node_dies_gets_one_typed_answer(
    processes: Processes,
    stub: SandboxServiceStub,
    until: Until,
    killed: Killed,
    sleeper: Callable[[str], str],
    processes_called: Callable[[str], list[int]],
) -> None:
    processes.dispatcher()
    node = processes.worker("node")
    await until(_workers(stub, 1))
    session = (await stub.OpenSession(sandbox_pb2.OpenSessionRequest(request_id="s"))).session_id
    name = uuid.uuid4().hex[:15]
    request = sandbox_pb2.ExecuteCellRequest(session_id=session, cell=_request(sleeper(name), 60))
    cell = asyncio.ensure_future(stub.ExecuteCell(request))
    await until(lambda: processes_called(name))
    killed(node)
    answer = await cell
    assert answer.status == common_pb2.TOOL_STATUS_UNAVAILABLE
    assert answer.session_state == sandbox_pb2.SESSION_STATE_LOST


async def test_a_node_that_drains_answers_what_it_runs_and_takes_nothing_more(
    processes: Processes, stub: SandboxServiceStub, until: Until
) -> None:
    processes.dispatcher()
    node = processes.worker("node", slots=1)
    await until(_workers(stub, 1))
    running = asyncio.ensure_future(stub.Execute(_request("import time; time.sleep(1.5); 'answered'", 30)))
    await until(_running(stub, 1))
    node.send_signal(signal.SIGTERM)
    waiting = asyncio.ensure_future(stub.Execute(_request("'elsewhere'")))
    assert (await running).value == "'answered'"
    assert await asyncio.to_thread(node.wait, 60) == 0
    assert not waiting.done()
    processes.worker("next", slots=1)
    assert (await waiting).value == "'elsewhere'"


async def test_a_cancelled_call_frees_the_slot_of_its_node(
    processes: Processes, stub: SandboxServiceStub, until: Until
) -> None:
    processes.dispatcher()
    processes.worker("node", slots=1)
    await until(_workers(stub, 1))
    call = stub.Execute(_request("import time; time.sleep(60)", 60))
    await until(_running(stub, 1))
    call.cancel()
    assert (await stub.Execute(_request("'free'"), timeout=60)).value == "'free'"


async def test_workers_come_back_to_a_dispatcher_that_was_killed_and_callers_are_answered(
    processes: Processes, stub: SandboxServiceStub, until: Until, killed: Killed
) -> None:
    first = processes.dispatcher()
    processes.worker("node")
    await until(_workers(stub, 1))
    requests = [_request(f"import time; time.sleep(0.1); {number}") for number in range(12)]
    calls = [asyncio.ensure_future(call_with_retry(stub.Execute, request)) for request in requests]
    await until(_running(stub, 2))
    killed(first)
    processes.dispatcher()
    assert [answer.value for answer in await asyncio.gather(*calls)] == [str(number) for number in range(12)]


async def test_a_node_that_is_stopped_counts_as_gone_and_its_late_answers_are_dropped(
    processes: Processes, stub: SandboxServiceStub, until: Until
) -> None:
    processes.dispatcher()
    stopped = processes.worker("stopped", slots=1)
    await until(_workers(stub, 1))
    request = _request("import os, time; time.sleep(0.5); os.urandom(8).hex()", 30)
    call = asyncio.ensure_future(stub.Execute(request))
    await until(_running(stub, 1))
    stopped.send_signal(signal.SIGSTOP)
    await until(_workers(stub, 0))
    processes.worker("other", slots=1)
    answer = await call
    assert answer.status == common_pb2.TOOL_STATUS_OK
    stopped.send_signal(signal.SIGCONT)
    await until(_workers(stub, 2))
    assert await stub.Execute(request) == answer


async def test_a_worker_without_the_workers_token_is_not_taken(
    processes: Processes, stub: SandboxServiceStub, until: Until, tmp_path: Any
) -> None:
    (tmp_path / "token").write_text("secret\n")
    (tmp_path / "wrong").write_text("guess\n")
    processes.dispatcher("--worker-token-file", str(tmp_path / "token"))
    processes.worker("impostor", "--worker-token-file", str(tmp_path / "wrong"))
    processes.worker("rightful", "--worker-token-file", str(tmp_path / "token"))
    await until(_workers(stub, 1))
    assert (await stub.Execute(_request("'ran'"))).value == "'ran'"
    assert (await _capacity(stub)).workers == 1


@pytest.mark.parametrize(
    ("first", "named"),
    [
        (sandbox_pb2.AttachRequest(credits=1), "names the worker"),
        (sandbox_pb2.AttachRequest(hello=sandbox_pb2.WorkerHello(slots=1, isolation="off")), "names the worker"),
        (sandbox_pb2.AttachRequest(hello=sandbox_pb2.WorkerHello(name="no slots", isolation="off")), "and slots"),
        (
            sandbox_pb2.AttachRequest(hello=sandbox_pb2.WorkerHello(name="n", slots=1, isolation="perfect")),
            "hello.isolation",
        ),
    ],
)
async def test_a_worker_has_to_introduce_itself(
    processes: Processes, first: sandbox_pb2.AttachRequest, named: str
) -> None:
    processes.dispatcher()
    async with open_channel(processes.endpoint) as channel:
        call = SandboxWorkerServiceStub(channel).Attach()
        await call.write(first)
        assert await call.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert named in await call.details()
