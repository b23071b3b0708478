"""Sessions, against the real service."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import grpc
import grpc.aio
import pytest

from rstar_protos.common.v1 import common_pb2
from rstar_protos.sandbox.v1 import sandbox_pb2
from rstar_protos.sandbox.v1.sandbox_pb2_grpc import SandboxServiceStub
from rstar_sandbox import Sandbox, Session, Status

pytestmark = pytest.mark.timeout(180)

Until = Callable[[Callable[[], Any]], Awaitable[None]]


@pytest.fixture
def session(sandbox: Sandbox) -> Iterator[Session]:
    with sandbox.session() as opened:
        yield opened


def _cell(session_id: str, code: str, request_id: str | None = None) -> sandbox_pb2.ExecuteCellRequest:
    cell = sandbox_pb2.ExecuteRequest(request_id=request_id or uuid.uuid4().hex, code=code)
    return sandbox_pb2.ExecuteCellRequest(session_id=session_id, cell=cell)


def test_state_lives_from_cell_to_cell(session: Session) -> None:
    session.run("def f(x):\n    return x + base\nbase = 40")
    assert session.run("f(2)").value == "42"


def test_an_error_keeps_the_state(session: Session) -> None:
    session.run("x = 1")
    result = session.run("y = 2\n1 / 0")
    assert (result.status, result.state_lost) == (Status.ERROR, None)
    assert result.traceback is not None
    assert "line 2" in result.traceback
    assert session.run("x + y").value == "3"


def test_output_belongs_to_its_cell(session: Session) -> None:
    assert session.run("print('one')").stdout == b"one\n"
    assert session.run("print('two', end='')").stdout == b"two"


def test_each_cell_has_its_own_standard_input(session: Session) -> None:
    assert session.run("input()", "first\n").value == "'first'"
    result = session.run("input()")
    assert result.traceback is not None
    assert "EOFError" in result.traceback
    assert session.run("input()", "third\n").value == "'third'"


def test_a_timeout_interrupts_and_keeps_the_state(session: Session) -> None:
    session.run("x = 7")
    result = session.run("while True: pass", timeout_s=0.3)
    assert (result.status, result.state_lost) == (Status.TIMEOUT, None)
    assert session.run("x").value == "7"


def test_a_cell_that_shrugs_off_the_interrupt_loses_the_state_and_says_so(session: Session) -> None:
    session.run("x = 7")
    code = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass"
    result = session.run(code, timeout_s=0.3)
    assert result.status is Status.TIMEOUT
    assert result.state_lost
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        session.run("x")
    assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    assert "timeout" in (refused.value.details() or "")


def test_a_cell_that_kills_its_process_loses_the_state_and_says_so(session: Session) -> None:
    result = session.run("import os; os._exit(9)")
    assert (result.status, result.exit_code) == (Status.CRASHED, 9)
    assert result.state_lost


def test_an_exit_in_a_cell_keeps_the_state(session: Session) -> None:
    session.run("x = 3")
    assert session.run("import sys; sys.exit(2)").exit_code == 2
    assert session.run("x").value == "3"


def test_sessions_do_not_see_each_other(sandbox: Sandbox) -> None:
    with sandbox.session() as one, sandbox.session() as two:
        one.run("secret = 1")
        assert two.run("'secret' in globals()").value == "False"


async def test_two_cells_at_once_run_one_after_the_other(stub: SandboxServiceStub) -> None:
    session_id = (await stub.OpenSession(sandbox_pb2.OpenSessionRequest())).session_id
    code = "log = globals().setdefault('log', []); import time; log.append('in'); time.sleep(0.2); log.append('out')"
    await asyncio.gather(*(stub.ExecuteCell(_cell(session_id, code)) for _ in range(3)))
    answer = await stub.ExecuteCell(_cell(session_id, "log"))
    assert answer.value == str(["in", "out"] * 3)
    assert answer.session_state == sandbox_pb2.SESSION_STATE_KEPT


async def test_the_same_cell_id_again_runs_once(stub: SandboxServiceStub) -> None:
    session_id = (await stub.OpenSession(sandbox_pb2.OpenSessionRequest())).session_id
    cell = _cell(session_id, "n = globals().get('n', 0) + 1\nn", "the-same")
    first, second = await stub.ExecuteCell(cell), await stub.ExecuteCell(cell)
    assert (first.value, second.value) == ("1", "1")


async def test_opening_again_with_the_same_id_gives_the_same_session(stub: SandboxServiceStub) -> None:
    request = sandbox_pb2.OpenSessionRequest(request_id=uuid.uuid4().hex)
    assert await stub.OpenSession(request) == await stub.OpenSession(request)


async def test_a_closed_or_unknown_session_is_not_found(stub: SandboxServiceStub) -> None:
    session_id = (await stub.OpenSession(sandbox_pb2.OpenSessionRequest())).session_id
    await stub.CloseSession(sandbox_pb2.CloseSessionRequest(session_id=session_id))
    for name in (session_id, "no-such-session"):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.ExecuteCell(_cell(name, "1"))
        assert refused.value.code() == grpc.StatusCode.NOT_FOUND


async def test_an_idle_session_is_closed(stub: SandboxServiceStub, until: Until) -> None:
    # Less than `until` waits between two looks, each of which is a cell.
    opened = await stub.OpenSession(sandbox_pb2.OpenSessionRequest(ttl_seconds=0.001))

    async def refusal() -> str | None:
        call = stub.ExecuteCell(_cell(opened.session_id, "1"))
        return await call.details() if await call.code() != grpc.StatusCode.OK else None

    await until(refusal)
    assert "idle" in (await refusal() or "")


async def test_a_cancelled_cell_loses_the_state(
    stub: SandboxServiceStub,
    until: Until,
    sleeper: Callable[[str], str],
    processes_called: Callable[[str], list[int]],
) -> None:
    name = uuid.uuid4().hex[:15]
    session_id = (await stub.OpenSession(sandbox_pb2.OpenSessionRequest())).session_id
    await stub.ExecuteCell(_cell(session_id, "x = 1"))
    call = stub.ExecuteCell(_cell(session_id, sleeper(name)))
    await until(lambda: processes_called(name))
    call.cancel()
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stub.ExecuteCell(_cell(session_id, "x"), timeout=30)
    assert refused.value.code() == grpc.StatusCode.FAILED_PRECONDITION


async def test_the_memory_of_a_cell_is_limited(stub: SandboxServiceStub) -> None:
    limits = sandbox_pb2.Limits(memory_bytes=100 * 1024 * 1024)
    session_id = (await stub.OpenSession(sandbox_pb2.OpenSessionRequest(limits=limits))).session_id
    answer = await stub.ExecuteCell(_cell(session_id, "x = bytearray(400_000_000)"))
    assert answer.status == common_pb2.TOOL_STATUS_MEMORY_LIMIT
    assert answer.session_state == sandbox_pb2.SESSION_STATE_KEPT


async def test_files_go_into_a_session_stay_and_come_back(stub: SandboxServiceStub) -> None:
    session_id = (await stub.OpenSession(sandbox_pb2.OpenSessionRequest())).session_id
    first = _cell(session_id, "open('in/data').read()")
    first.cell.files.add(path="in/data", content=b"given")
    assert (await stub.ExecuteCell(first)).value == "'given'"
    second = _cell(session_id, "open('out', 'w').write(open('in/data').read() + '!')")
    second.cell.collect_paths.extend(["out", "missing"])
    answer = await stub.ExecuteCell(second)
    assert [(file.path, file.content) for file in answer.files] == [("out", b"given!")]
    assert "missing" in answer.detail


async def test_a_link_in_a_session_leads_no_file_out(stub: SandboxServiceStub) -> None:
    session_id = (await stub.OpenSession(sandbox_pb2.OpenSessionRequest())).session_id
    await stub.ExecuteCell(_cell(session_id, "import os; os.symlink('/etc', 'etc'); os.symlink('/etc/passwd', 'p')"))
    cell = _cell(session_id, "1")
    cell.cell.collect_paths.extend(["etc/passwd", "p"])
    assert list((await stub.ExecuteCell(cell)).files) == []
    cell = _cell(session_id, "1")
    cell.cell.files.add(path="etc/mine", content=b"x")
    answer = await stub.ExecuteCell(cell)
    assert answer.status == common_pb2.TOOL_STATUS_ERROR
    assert answer.session_state == sandbox_pb2.SESSION_STATE_KEPT


def test_what_threads_print_between_cells_belongs_to_no_cell(session: Session) -> None:
    session.run(
        "import threading, time, os\n"
        "def chatter():\n    while True:\n        os.write(1, b'noise')\n"
        '        os.write(255, b\'{"end": "ok"}\\n\')\n        time.sleep(0.005)\n'
        "threading.Thread(target=chatter, daemon=True).start()"
    )
    for number in range(5):
        result = session.run(f"print('cell {number}')", timeout_s=5)
        assert result.status in (Status.OK, Status.CRASHED)  # the thread may forge what its own session says
        assert result.state_lost is None


def test_an_interrupt_comes_before_the_kill(session: Session) -> None:
    code = "import time\ntry: time.sleep(60)\nexcept KeyboardInterrupt: print('interrupted'); x = 9"
    result = session.run(code, timeout_s=0.3)
    assert (result.status, result.stdout, result.state_lost) == (Status.TIMEOUT, b"interrupted\n", None)
    assert session.run("x").value == "9"


async def test_the_children_of_a_session_end_with_it(
    stub: SandboxServiceStub, until: Until, processes_called: Callable[[str], list[int]]
) -> None:
    session_id = (await stub.OpenSession(sandbox_pb2.OpenSessionRequest())).session_id
    seconds = f"86.{uuid.uuid4().int % 10**12}"
    await stub.ExecuteCell(_cell(session_id, f"import subprocess; p = subprocess.Popen(['sleep', '{seconds}'])"))
    await until(lambda: processes_called(seconds))
    await stub.CloseSession(sandbox_pb2.CloseSessionRequest(session_id=session_id))
    await until(lambda: not processes_called(seconds))


def test_the_memory_of_a_session_that_ran_out_is_told(session: Session) -> None:
    result = session.run(
        "import os, time\nfor _ in range(20):\n    if os.fork() == 0:\n        x = bytearray(b'x') * (100 << 20)\n"
        "        time.sleep(60)\ntime.sleep(60)",
        timeout_s=60,
    )
    assert result.status is Status.MEMORY_LIMIT
    assert result.state_lost
