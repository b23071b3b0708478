"""`rstar-rollout chat`: talk to a policy that has tools. Works on a terminal and with piped input."""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass

from rich.console import Console
from rich.markup import escape

from rstar_model.tool_calls import MalformedCall, ToolCall
from rstar_model.types import ToolStatus
from rstar_rollout.agent_loop import AgentLoop
from rstar_rollout.engines.base import GenerationRequest, NoiseKey
from rstar_rollout.limits import SamplingSettings, ToolSettings
from rstar_rollout.serving import RolloutOptions, RolloutParts
from rstar_rollout.tool_executor import ToolInvocation, ToolResult

__all__ = ["ChatEvent", "ChatSession", "chat"]


@dataclass(frozen=True)
class ChatEvent:
    """Something to show. ``kind``: text (of the policy), call, result, or note (about the conversation)."""

    kind: str
    text: str


class ChatSession:
    """A conversation of several user messages; the policy's tokens are never rendered again.

    Args:
        loop: engine, format, tokenizer and tools.
        sampling: settings.
        tools: settings.
        max_turns: assistant turns in answer to one message.
        max_new_tokens: of one turn.
    """

    def __init__(
        self,
        loop: AgentLoop,
        sampling: SamplingSettings,
        tools: ToolSettings,
        *,
        max_turns: int = 10,
        max_new_tokens: int = 2048,
    ) -> None:
        self._loop = loop
        self._format, self._tokenizer = loop.chat_format, loop.tokenizer
        self._specs = loop.specs if tools.enabled else ()
        self._sampling, self._tools = sampling, tools
        self._max_turns, self._max_new_tokens = max_turns, max_new_tokens
        self._id = uuid.uuid4().hex[:16]
        self._ids: list[int] = []
        self._turn = 0

    async def answer(self, message: str) -> AsyncIterator[ChatEvent]:
        """Say something; yields what the policy says and does in answer."""
        self._ids += self._user_turn(message)
        for _ in range(self._max_turns):
            text, finish, closed = await self._generate()
            yield ChatEvent("text", self._format.turn_prefill + text.removesuffix(self._format.end_of_turn))
            if finish == "length":
                yield ChatEvent("note", "the answer was cut: no room left")
                return
            parsed = self._format.parser().parse(text)
            if parsed.unclosed:
                yield ChatEvent("note", "the turn ended inside a tool call, which was not run")
                return
            if not parsed.calls or not self._specs:
                return
            results: list[str] = []
            for index, call in enumerate(parsed.calls):
                yield ChatEvent("call", _shown_call(call))
                result = await self._run(call, index)
                if result.status is ToolStatus.UNAVAILABLE:
                    yield ChatEvent("note", f"the tool is not available: {result.detail}")
                    return
                yield ChatEvent("result", f"[{result.status.value}] {result.text}")
                results.append(result.text)
            for _, ids in self._format.tool_turn_spans(
                self._tokenizer, results, max_tokens=self._max_new_tokens, turn_closed=closed
            ):
                self._ids += ids
        yield ChatEvent("note", f"turn limit of {self._max_turns} reached")

    def _user_turn(self, message: str) -> list[int]:
        chat_format = self._format
        if not self._ids:
            return chat_format.prompt_ids(self._tokenizer, message, self._specs)
        header = chat_format.turn_header.replace("{role}", chat_format.roles.user)
        opening = chat_format.turn_header.replace("{role}", chat_format.roles.assistant)
        end = chat_format.end_of_turn + chat_format.turn_separator
        closed = self._ids[-1] == chat_format.end_of_turn_id(self._tokenizer)
        before = (chat_format.turn_separator if closed else end) + header
        ids, _ = self._tokenizer.encode_pieces(
            [(before, True), (message, False), (end + opening + chat_format.turn_prefill, True)]
        )
        return ids

    async def _generate(self) -> tuple[str, str, bool]:
        """Text of the next turn, why it ended, and whether the policy closed it."""
        longest = self._loop.engine.max_model_tokens
        room = self._max_new_tokens if longest is None else min(self._max_new_tokens, longest - len(self._ids))
        if room < 1:
            return "", "length", False
        sampling = self._sampling
        result = await self._loop.engine.generate(
            GenerationRequest(
                request_id=f"{self._id}/{self._turn}",
                sequence_id=self._id,
                token_ids=tuple(self._ids),
                max_new_tokens=room,
                temperature=sampling.temperature,
                top_p=sampling.top_p,
                top_k=sampling.top_k,
                stop_ids=self._format.stop_ids(self._tokenizer),
                noise=NoiseKey(sampling.seed, "chat", 0, self._turn),
                log_probs=False,
            )
        )
        self._ids += result.token_ids
        self._turn += 1
        closed = bool(result.token_ids) and result.token_ids[-1] == self._format.end_of_turn_id(self._tokenizer)
        return self._tokenizer.decode(result.token_ids), result.finish_reason, closed

    async def _run(self, call: ToolCall | MalformedCall, index: int) -> ToolResult:
        if isinstance(call, MalformedCall):
            return ToolResult(ToolStatus.PARSE_ERROR, call.message)
        spec = next((spec for spec in self._specs if spec.name == call.name), None)
        if spec is None:
            return ToolResult(ToolStatus.UNKNOWN_TOOL, f"Unknown tool {call.name!r}")
        wrong = spec.argument_error(call.arguments)
        if wrong is not None:
            return ToolResult(ToolStatus.PARSE_ERROR, f"Tool call not valid: {wrong}")
        call_id = f"{self._id}/{self._turn}/{index}"
        return await self._loop.run_tool(
            ToolInvocation(call_id, call.name, call.arguments, self._tools.wall_seconds, self._tools.memory_bytes)
        )


def _shown_call(call: ToolCall | MalformedCall) -> str:
    if isinstance(call, MalformedCall):
        return "(not a valid call)"
    code = call.arguments.get("code")
    if isinstance(code, str):
        given = call.arguments.get("input")
        return code if not given else f"{code}\n# stdin: {json.dumps(given, ensure_ascii=False)}"
    return f"{call.name}({call.arguments_json})"


async def chat(
    options: RolloutOptions, sampling: SamplingSettings, tools: ToolSettings, *, max_turns: int, max_new_tokens: int
) -> None:
    """Read messages from standard input until its end and print the answers."""
    parts = RolloutParts(options)
    console = Console(highlight=False, soft_wrap=True)
    interactive = sys.stdin.isatty() and console.is_terminal
    try:
        with console.status("loading the model") if interactive else _Nothing():
            loop = await parts.start()
        session = ChatSession(loop, sampling, tools, max_turns=max_turns, max_new_tokens=max_new_tokens)
        if interactive:
            console.print("Type a message; end with an empty line or Ctrl-D.", style="dim")
        while message := await asyncio.to_thread(_read_message, interactive):
            async for event in session.answer(message):
                _show(console, event)
    finally:
        await parts.stop()


class _Nothing:
    """A context that does nothing."""

    def __enter__(self) -> None:
        """Nothing."""

    def __exit__(self, *_: object) -> None:
        """Nothing."""


def _read_message(interactive: bool) -> str:
    if interactive:
        try:
            return input("you> ").strip()
        except EOFError:
            return ""
    for line in sys.stdin:
        if line.strip():
            return line.strip()
    return ""


_STYLES = {"text": None, "call": "cyan", "result": "green", "note": "yellow"}


def _show(console: Console, event: ChatEvent) -> None:
    label = {"text": "policy", "call": "code", "result": "result", "note": "note"}[event.kind]
    style = _STYLES[event.kind]
    body = escape(event.text)
    console.print(f"{label}> {f'[{style}]{body}[/{style}]' if style else body}")
