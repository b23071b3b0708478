"""The plug-in point for tools: each has a name, a JSON schema and limits, and turns a call into a typed result.

The Python tool is built in. A package registers another under the entry point group `rstar_rollout.tools`; the entry
point is a callable that takes a `ToolContext` and returns a `Tool`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Protocol, runtime_checkable

import grpc.aio

from rstar_model.tools import PYTHON_TOOL, ToolSpec
from rstar_model.types import ToolStatus
from rstar_protos.errors import UserInputError
from rstar_rollout.tool_executor import SandboxToolExecutor, ToolInvocation, ToolResult

__all__ = [
    "ENTRY_POINT_GROUP",
    "CallFailedError",
    "FunctionTool",
    "PythonTool",
    "Tool",
    "ToolBox",
    "ToolContext",
    "check_tools",
    "load_tools",
    "tool_names",
]

ENTRY_POINT_GROUP = "rstar_rollout.tools"

_log = logging.getLogger(__name__)


class CallFailedError(Exception):
    """A call failed through the caller's doing. The text is shown to the policy, the status is ERROR."""


@dataclass(frozen=True)
class ToolContext:
    """What a tool may use of its surroundings.

    ``sandbox`` is a channel to a SandboxService, None where there is none. The two durations are those of
    `SandboxToolExecutor`.
    """

    sandbox: grpc.aio.Channel | None = None
    patience_seconds: float = 60.0
    queue_seconds: float = 300.0


@runtime_checkable
class Tool(Protocol):
    """One tool. Arguments have passed the schema of its spec when `run` is called.

    A tool that keeps to ``invocation.wall_seconds`` itself, so that time in a queue does not count, has an attribute
    ``bounds_time = True``; calls of any other are ended at the limit.
    """

    spec: ToolSpec

    async def run(self, invocation: ToolInvocation) -> ToolResult:
        """Run one call. Cancelling it frees what it holds.

        Raises:
            CallFailedError: a failed call, in words for the policy.
            Exception: any other is taken for a fault of the infrastructure; the rollout is excluded.
        """


_NEEDS_SANDBOX = "an endpoint of a SandboxService, which this tool runs programs in"


class PythonTool:
    """The paper's tool: a program with standard input, run by the sandbox."""

    spec = PYTHON_TOOL
    bounds_time = True

    def __init__(self, context: ToolContext) -> None:
        if context.sandbox is None:
            raise UserInputError("tool", "python", _NEEDS_SANDBOX)
        executor = SandboxToolExecutor(
            context.sandbox, patience_seconds=context.patience_seconds, queue_seconds=context.queue_seconds
        )
        self.run = executor.execute


class FunctionTool:
    """A coroutine function as a tool: it is given the arguments by name and returns the text for the policy."""

    def __init__(self, spec: ToolSpec, function: Callable[..., Awaitable[str]]) -> None:
        self.spec = spec
        self._function = function

    async def run(self, invocation: ToolInvocation) -> ToolResult:
        """Call the function."""
        return ToolResult(ToolStatus.OK, await self._function(**invocation.arguments))


class ToolBox:
    """A set of tools as what an agent loop runs its calls with.

    Raises:
        UserInputError: two tools of one name.
    """

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._tools = {tool.spec.name: tool for tool in tools}
        if len(self._tools) != len(tools):
            names = [tool.spec.name for tool in tools]
            raise UserInputError("tools", ", ".join(names), "tools whose names differ")
        self.specs: tuple[ToolSpec, ...] = tuple(tool.spec for tool in tools)

    async def execute(self, invocation: ToolInvocation) -> ToolResult:
        """Run one call; whatever goes wrong comes back as a status."""
        tool = self._tools.get(invocation.name)
        if tool is None:
            return ToolResult(ToolStatus.UNKNOWN_TOOL, f"Unknown tool {invocation.name!r}")
        bounded = getattr(tool, "bounds_time", False)
        seconds = invocation.wall_seconds if invocation.wall_seconds > 0 and not bounded else None
        started = asyncio.get_running_loop().time()
        running = asyncio.ensure_future(tool.run(invocation))
        try:
            # Not `wait_for`: a timeout inside the tool is not the limit of the call.
            done, _ = await asyncio.wait({running}, timeout=seconds)
        finally:
            running.cancel()
        wall = asyncio.get_running_loop().time() - started
        if not done:
            await asyncio.wait({running}, timeout=1.0)  # time to clean up; a tool that ignores it is left behind
            return ToolResult(ToolStatus.TIMEOUT, f"Timeout: the call did not finish within {seconds:g} seconds.", wall)
        try:
            return running.result()
        except CallFailedError as error:
            return ToolResult(ToolStatus.ERROR, f"Error: {error}", wall)
        except (Exception, asyncio.CancelledError) as error:
            _log.exception("tool %s failed", invocation.name)
            return ToolResult(ToolStatus.UNAVAILABLE, "", wall, detail=f"{type(error).__name__}: {error}")


_BUILT_IN: dict[str, Callable[[ToolContext], Tool]] = {"python": PythonTool}


def load_tools(names: Sequence[str], context: ToolContext) -> ToolBox:
    """The tools of these names, in this order.

    Raises:
        UserInputError: there is none of a name, it cannot be made here, or what is registered is not a tool.
    """
    tools: list[Tool] = []
    for name in names:
        factory = _BUILT_IN.get(name)
        if factory is None:
            found = [point for point in entry_points(group=ENTRY_POINT_GROUP) if point.name == name]
            if not found:
                raise UserInputError("tool", name, f"one of {', '.join(tool_names())}")
            factory = found[0].load()
        tool = factory(context)
        if not isinstance(tool, Tool):
            raise UserInputError("tool", name, f"an entry point in {ENTRY_POINT_GROUP} that makes a Tool")
        tools.append(tool)
    return ToolBox(tools)


def check_tools(names: Sequence[str], *, has_sandbox: bool) -> None:
    """Find out, before anything is started, whether there are tools of these names.

    Raises:
        UserInputError: there is none, or the Python tool has no sandbox.
    """
    for name in names:
        if name not in tool_names():
            raise UserInputError("tool", name, f"one of {', '.join(tool_names())}")
        if name == "python" and not has_sandbox:
            raise UserInputError("tool", name, _NEEDS_SANDBOX)


def tool_names() -> tuple[str, ...]:
    """The names that `load_tools` knows, built-in ones first."""
    others = {point.name for point in entry_points(group=ENTRY_POINT_GROUP)} - set(_BUILT_IN)
    return (*_BUILT_IN, *sorted(others))
