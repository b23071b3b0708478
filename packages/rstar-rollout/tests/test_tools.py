"""Tools by name: what comes of a call, who may register one, and what limits hold."""

from __future__ import annotations

import asyncio
import importlib.metadata
import sys
import types

import pytest

from rstar_model.tools import PYTHON_TOOL, ToolSpec
from rstar_model.types import ToolStatus
from rstar_protos.errors import UserInputError
from rstar_protos.service import open_channel
from rstar_rollout import tools
from rstar_rollout.tool_executor import ToolInvocation, ToolResult
from rstar_rollout.tools import (
    CallFailedError,
    FunctionTool,
    ToolBox,
    ToolContext,
    check_tools,
    load_tools,
    tool_names,
)

ADD = ToolSpec("add", "Adds.", {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}})


async def add(a: int, b: int = 0) -> str:
    if b < 0:
        raise CallFailedError("b must not be negative")
    if b == 13:
        raise OSError("disk of host seven is full")
    if b == 99:
        await asyncio.Event().wait()
    return str(a + b)


def invocation(name: str = "add", seconds: float = 0.0, **arguments: object) -> ToolInvocation:
    return ToolInvocation("id", name, arguments, seconds, 0)


BOX = ToolBox([FunctionTool(ADD, add)])


async def test_a_function_is_given_its_arguments_by_name():
    assert await BOX.execute(invocation(a=2, b=3)) == ToolResult(ToolStatus.OK, "5")


async def test_a_failed_call_is_told_to_the_policy():
    result = await BOX.execute(invocation(a=2, b=-1))
    assert (result.status, result.text) == (ToolStatus.ERROR, "Error: b must not be negative")


async def test_a_fault_of_the_tool_is_no_text_for_the_policy():
    result = await BOX.execute(invocation(a=2, b=13))
    assert (result.status, result.text) == (ToolStatus.UNAVAILABLE, "")
    assert "host seven" in result.detail


async def test_a_call_that_takes_too_long_is_ended():
    result = await BOX.execute(invocation(seconds=0.05, a=2, b=99))
    assert result.status is ToolStatus.TIMEOUT
    assert "0.05 seconds" in result.text
    assert len(asyncio.all_tasks()) == 1


async def test_a_timeout_inside_the_tool_is_a_fault_and_not_the_calls_limit():
    async def fail(a: int) -> str:
        raise asyncio.TimeoutError

    result = await ToolBox([FunctionTool(ADD, fail)]).execute(invocation(seconds=5.0, a=1))
    assert result.status is ToolStatus.UNAVAILABLE


async def test_time_in_a_queue_is_left_to_a_tool_that_bounds_its_own():
    class Queued(FunctionTool):
        bounds_time = True

    async def slow(a: int) -> str:
        await asyncio.sleep(0.1)
        return "done"

    result = await ToolBox([Queued(ADD, slow)]).execute(invocation(seconds=0.01, a=1))
    assert result.status is ToolStatus.OK


async def test_cancelling_a_call_cancels_the_tool():
    calling = asyncio.ensure_future(BOX.execute(invocation(a=2, b=99)))
    await asyncio.sleep(0)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    await asyncio.sleep(0)
    assert len(asyncio.all_tasks()) == 1


async def test_an_unknown_tool_is_its_own_status():
    assert (await BOX.execute(invocation("subtract"))).status is ToolStatus.UNKNOWN_TOOL


def test_tools_of_one_name_are_refused():
    with pytest.raises(UserInputError, match="add, add"):
        ToolBox([FunctionTool(ADD, add), FunctionTool(ADD, add)])


async def test_the_python_tool_is_built_in_and_needs_a_sandbox():
    channel = open_channel("unix:/tmp/rstar-none.sock")
    assert load_tools(["python"], ToolContext(channel)).specs == (PYTHON_TOOL,)
    await channel.close()
    with pytest.raises(UserInputError, match="SandboxService"):
        load_tools(["python"], ToolContext())


async def test_a_package_registers_a_tool_by_entry_point(monkeypatch: pytest.MonkeyPatch):
    """The entry points and what they lead to are real; that a package which has them is installed is not."""
    module = types.ModuleType("calculator_tools")
    vars(module).update(adder=lambda context: FunctionTool(ADD, add), nothing=lambda context: object())
    monkeypatch.setitem(sys.modules, "calculator_tools", module)
    points = [
        importlib.metadata.EntryPoint(name, f"calculator_tools:{name}", tools.ENTRY_POINT_GROUP)
        for name in ("adder", "nothing")
    ]
    monkeypatch.setattr(tools, "entry_points", lambda group: [p for p in points if p.group == group])
    assert tool_names() == ("python", "adder", "nothing")
    box = load_tools(["adder"], ToolContext())
    assert (await box.execute(invocation(a=1, b=1))).text == "2"
    with pytest.raises(UserInputError, match="makes a Tool"):
        load_tools(["nothing"], ToolContext())


def test_a_tool_that_nobody_registered_is_refused_with_those_there_are():
    with pytest.raises(UserInputError, match="python"):
        load_tools(["search"], ToolContext())


def test_tools_are_checked_before_anything_is_started():
    check_tools(["python"], has_sandbox=True)
    check_tools([], has_sandbox=False)
    for names in (["python"], ["search"]):
        with pytest.raises(UserInputError, match=names[0]):
            check_tools(names, has_sandbox=False)
