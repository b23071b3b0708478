"""What a policy is shown of a program's result; over the real sandbox where it is installed."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable

import grpc
import grpc.aio
import pytest

from rstar_model.tools import PYTHON_TOOL
from rstar_model.types import ToolStatus
from rstar_protos.common.v1 import common_pb2
from rstar_protos.sandbox.v1 import sandbox_pb2, sandbox_pb2_grpc
from rstar_protos.service import EmbeddedService, ServeSettings, open_channel, start_server
from rstar_rollout.tool_executor import SandboxToolExecutor, ToolInvocation, ToolResult, response_text

needs_sandbox = pytest.mark.skipif(
    importlib.util.find_spec("rstar_sandbox") is None, reason="rstar-sandbox is not installed"
)


def invocation(code: str, stdin: str = "", seconds: float = 5.0) -> ToolInvocation:
    arguments = {"code": code, "input": stdin}
    return ToolInvocation(uuid.uuid4().hex, PYTHON_TOOL.name, arguments, seconds, 0)


@pytest.fixture(scope="module")
def sandbox():
    service = EmbeddedService("sandbox", [sys.executable, "-m", "rstar_sandbox", "serve", "--slots", "2"])
    yield service.start()
    service.stop()


Run = Callable[[ToolInvocation], Awaitable[ToolResult]]


@pytest.fixture
async def run(sandbox: str) -> AsyncIterator[Run]:
    channel = open_channel(sandbox)
    yield SandboxToolExecutor(channel).execute
    await channel.close()


@needs_sandbox
@pytest.mark.parametrize(
    ("code", "stdin", "text"),
    [
        ("print(2+3)", "", "5"),
        ("print('a');print('b')", "", "a\nb"),
        ("print(int(input())*2)", "21", "42"),
        ("2+3", "", "5"),
        ("x = 5\nx", "", "5"),
        ("'q'", "", "'q'"),
        ("x = 1", "", "(no output)"),
        ("print('shown')\n'not shown'", "", "shown"),
        ("print('this says error')", "", "this says error"),
    ],
)
async def test_success(run: Run, code: str, stdin: str, text: str):
    result = await run(invocation(code, stdin))
    assert (result.status, result.text) == (ToolStatus.OK, text)


@needs_sandbox
async def test_error_shows_output_then_traceback(run: Run):
    result = await run(invocation("print('before')\n1/0"))
    assert result.status is ToolStatus.ERROR
    assert result.text.startswith("before\n")
    assert result.text.endswith("ZeroDivisionError: division by zero")


@needs_sandbox
async def test_deep_traceback_keeps_its_end(run: Run):
    result = await run(invocation("def f(n):\n    return f(n-1) if n else 1/0\nf(30)"))
    assert result.status is ToolStatus.ERROR
    assert len(result.text.splitlines()) <= 12
    assert result.text.endswith("ZeroDivisionError: division by zero")


@needs_sandbox
async def test_timeout_says_so_and_keeps_what_was_printed(run: Run):
    result = await run(invocation("print('early', flush=True)\nwhile True: pass", seconds=0.5))
    assert result.status is ToolStatus.TIMEOUT
    assert result.text.startswith("early\n")
    assert "0.5 seconds" in result.text


@needs_sandbox
async def test_exit_code_is_named(run: Run):
    result = await run(invocation("import os; os._exit(3)"))
    assert result.status is ToolStatus.CRASHED
    assert "exit code 3" in result.text


class StubSandbox(sandbox_pb2_grpc.SandboxServiceServicer):
    """Refuses a given number of calls with a given status before it answers."""

    def __init__(self, code: grpc.StatusCode, times: int) -> None:
        self.code, self.times = code, times
        self.request_ids: list[str] = []

    async def Execute(self, request, context):  # noqa: N802
        self.request_ids.append(request.request_id)
        if len(self.request_ids) <= self.times:
            await context.abort(self.code, "worker 7 on host nine is gone")
        return sandbox_pb2.ExecuteResponse(
            request_id=request.request_id, status=common_pb2.TOOL_STATUS_OK, stdout=b"4\n"
        )


async def run_against(stub: StubSandbox, patience: float) -> ToolResult:
    def register(server: grpc.aio.Server) -> None:
        sandbox_pb2_grpc.add_SandboxServiceServicer_to_server(stub, server)

    socket = f"unix:/tmp/rstar-{uuid.uuid4().hex[:12]}.sock"
    running = await start_server(ServeSettings(listen=socket), register, [sandbox_pb2.DESCRIPTOR])
    channel = open_channel(running.listening)
    try:
        return await SandboxToolExecutor(channel, patience_seconds=patience).execute(invocation("4"))
    finally:
        await channel.close()
        await running.stop(0)


async def test_a_sandbox_that_comes_back_only_delays():
    stub = StubSandbox(grpc.StatusCode.UNAVAILABLE, times=2)
    result = await run_against(stub, patience=30)
    assert (result.status, result.text) == (ToolStatus.OK, "4")
    assert len(stub.request_ids) == 3
    assert len(set(stub.request_ids)) == 1


@pytest.mark.parametrize("code", [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL])
async def test_fault_is_unavailable_without_text_for_the_policy(code: grpc.StatusCode):
    result = await run_against(StubSandbox(code, times=10**6), patience=0.2)
    assert (result.status, result.text) == (ToolStatus.UNAVAILABLE, "")
    assert "host nine" in result.detail


async def test_refused_program_counts_as_failed_and_tells_nothing_of_the_infrastructure():
    result = await run_against(StubSandbox(grpc.StatusCode.INVALID_ARGUMENT, times=10**6), patience=0.2)
    assert result.status is ToolStatus.ERROR
    assert "host" not in result.text


@needs_sandbox
async def test_limits_that_a_sandbox_refuses_are_no_fault_of_the_program(run: Run):
    result = await run(invocation("1", seconds=-1.0))
    assert (result.status, result.text) == (ToolStatus.UNAVAILABLE, "")
    assert "limits.wall_seconds" in result.detail


async def test_no_server_at_all_is_unavailable():
    channel = open_channel(f"unix:/tmp/rstar-{uuid.uuid4().hex[:12]}.sock")
    result = await SandboxToolExecutor(channel, patience_seconds=0.2).execute(invocation("1"))
    await channel.close()
    assert result.status is ToolStatus.UNAVAILABLE


@pytest.mark.parametrize(
    ("status", "fields", "words"),
    [
        (ToolStatus.MEMORY_LIMIT, {}, "Memory limit"),
        (ToolStatus.OUTPUT_LIMIT, {"stdout": b"aaa"}, "Output limit"),
        (ToolStatus.CRASHED, {"signal": 11}, "signal 11"),
        (ToolStatus.ERROR, {}, "failed"),
        (ToolStatus.ERROR, {"traceback": "SyntaxError: x"}, "SyntaxError: x"),
    ],
)
def test_every_verdict_has_words(status: ToolStatus, fields, words: str):
    assert words in response_text(sandbox_pb2.ExecuteResponse(**fields), status, invocation("x"))


@needs_sandbox
async def test_killed_sandbox_is_restarted_and_the_call_completes(until):
    import os
    import signal

    service = EmbeddedService("sandbox-kill", [sys.executable, "-m", "rstar_sandbox", "serve", "--slots", "2"])
    channel = open_channel(service.start())
    try:
        executor = SandboxToolExecutor(channel, patience_seconds=120)
        assert (await executor.execute(invocation("1"))).text == "1"
        slow = asyncio.create_task(executor.execute(invocation("import time; time.sleep(1); print('done')")))

        async def running() -> bool:
            state = await sandbox_pb2_grpc.SandboxServiceStub(channel).GetCapacity(sandbox_pb2.GetCapacityRequest())
            return state.running > 0

        await until(running)
        assert service.pid is not None
        os.kill(service.pid, signal.SIGKILL)
        result = await slow
        assert (result.status, result.text) == (ToolStatus.OK, "done")
    finally:
        await channel.close()
        service.stop()
