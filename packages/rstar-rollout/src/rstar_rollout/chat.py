"""`rstar-rollout chat`: talk to a policy that has tools. Works on a terminal and with piped input."""

from __future__ import annotations

import asyncio
import json
import sys
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.text import Text

from rstar_model.tool_calls import MalformedCall, ToolCall
from rstar_model.types import ToolStatus
from rstar_rollout.agent_loop import AgentLoop
from rstar_rollout.engines.base import GenerationRequest, NoiseKey
from rstar_rollout.limits import SamplingSettings, ToolSettings
from rstar_rollout.serving import RolloutOptions, RolloutParts
from rstar_rollout.tool_executor import ToolInvocation, ToolResult
from rstar_rollout.turn_view import Piece, TurnView

__all__ = ["ChatEvent", "ChatSession", "chat"]


@dataclass(frozen=True)
class ChatEvent:
    """Something to show.

    ``kind``: reasoning or answer (of the policy, in portions as they come), call, result, or note (about the
    conversation).
    """

    kind: str
    text: str


@dataclass
class _Generated:
    """One turn: its text, why it ended, whether the policy closed it, and the calls that were shown while it came."""

    text: str = ""
    finish: str = ""
    closed: bool = False
    shown_calls: list[str] = field(default_factory=list)


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
            turn = _Generated()
            async for event in self._generate(turn):
                yield event
            text, closed = turn.text, turn.closed
            if turn.finish == "length":
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
                if turn.shown_calls[index : index + 1] != [_shown_call(call)]:
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

    async def _generate(self, turn: _Generated) -> AsyncIterator[ChatEvent]:
        """Generate the next turn into ``turn`` and show it as it comes."""
        longest = self._loop.engine.max_model_tokens
        room = self._max_new_tokens if longest is None else min(self._max_new_tokens, longest - len(self._ids))
        if room < 1:
            turn.finish = "length"
            return
        sampling = self._sampling
        request = GenerationRequest(
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
        portions: asyncio.Queue[Sequence[int] | None] = asyncio.Queue()
        generating = asyncio.ensure_future(self._loop.engine.generate(request, portions.put_nowait))
        generating.add_done_callback(lambda _: portions.put_nowait(None))
        view, seen = TurnView(self._format), 0
        ids: list[int] = []
        try:
            while (portion := await portions.get()) is not None:
                ids += portion
                text = self._tokenizer.decode(ids)
                # A character may come in several tokens; half of one is no text yet.
                ready = len(text.rstrip("\ufffd"))
                for piece in view.feed(text[seen:ready]):
                    for event in self._events(piece, turn):
                        yield event
                seen = max(seen, ready)
            result = await generating
        finally:
            generating.cancel()
        turn.text = self._tokenizer.decode(result.token_ids)
        for piece in (*view.feed(turn.text[seen:]), *view.end()):
            for event in self._events(piece, turn):
                yield event
        self._ids += result.token_ids
        self._turn += 1
        turn.finish = result.finish_reason
        turn.closed = bool(result.token_ids) and result.token_ids[-1] == self._format.end_of_turn_id(self._tokenizer)

    def _events(self, piece: Piece, turn: _Generated) -> list[ChatEvent]:
        if piece.kind != "call":
            return [ChatEvent(piece.kind, piece.text)]
        # Shown as soon as it is written; whatever only the whole turn makes plain is shown with its end.
        text = self._format.tool_call_open + piece.text + self._format.tool_call_close
        calls = self._format.parser().parse(text).calls
        if len(calls) != 1 or isinstance(calls[0], MalformedCall):
            return []
        turn.shown_calls.append(_shown_call(calls[0]))
        return [ChatEvent("call", turn.shown_calls[-1])]

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
            screen = _Screen(console)
            async for event in session.answer(message):
                screen.show(event)
            screen.close()
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


_STYLES = {"reasoning": "dim", "answer": "bold", "call": "cyan", "result": "green", "note": "yellow"}
_LABELS = {"reasoning": "policy", "answer": "answer", "call": "code", "result": "result", "note": "note"}


class _Screen:
    """Shows events one after another; portions of one kind go on in the line they began."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._open = ""

    def show(self, event: ChatEvent) -> None:
        """Show an event."""
        text = event.text
        if event.kind != self._open:
            text = text.lstrip("\n")
            if event.kind in ("reasoning", "answer") and not text.strip():
                return  # white space between two tags
            self.close()
            self._console.print(f"{_LABELS[event.kind]}> ", end="", style="bold magenta")
            self._open = event.kind
        self._console.print(Text(text, style=_STYLES[event.kind]), end="")
        if event.kind not in ("reasoning", "answer"):
            self.close()

    def close(self) -> None:
        """End the line."""
        if self._open:
            self._console.print()
        self._open = ""
