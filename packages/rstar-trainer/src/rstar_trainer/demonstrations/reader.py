"""Files of conversations in any known layout, and a report of what was left out or changed, and why."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from rstar_protos.errors import UserInputError
from rstar_protos.jsonl import parse_line, read_lines
from rstar_trainer.demonstrations.conversation import (
    AssistantTurn,
    Conversation,
    DroppedRowError,
    ToolTurn,
    UserTurn,
    checked,
)
from rstar_trainer.demonstrations.layouts import LAYOUTS, layout_of

__all__ = ["ReadReport", "read_conversations", "write_conversations"]

_EXAMPLES = 3


@dataclass
class ReadReport:
    """What became of the rows of a file.

    Attributes:
        path: of the file.
        rows: that were read.
        kept: that became conversations.
        layouts: rows by layout.
        dropped: rows left out, by reason.
        changed: kept rows that were changed, by what was done to them.
        examples: the first few lines of each reason.
        tool_calls: in the kept rows.
    """

    path: str
    rows: int = 0
    kept: int = 0
    layouts: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    changed: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[int]] = field(default_factory=dict)
    tool_calls: int = 0

    def drop(self, reason: str, line: int) -> None:
        """Counts a row that is left out."""
        self.dropped[reason] += 1
        lines = self.examples.setdefault(reason, [])
        if len(lines) < _EXAMPLES:
            lines.append(line)

    def lines(self) -> Iterator[str]:
        """For people."""
        layouts = ", ".join(f"{name} {count}" for name, count in self.layouts.most_common())
        yield f"{self.path}: {self.rows} rows ({layouts}), {self.kept} kept with {self.tool_calls} tool calls"
        for reason, count in self.dropped.most_common():
            yield f"  left out {count}: {reason} (line {', '.join(map(str, self.examples[reason]))})"
        for change, count in self.changed.most_common():
            yield f"  changed {count}: {change}"

    def to_json_dict(self) -> dict[str, Any]:
        """For machines."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: dict(value) if isinstance(value, Counter) else value for name, value in values.items()}


def read_conversations(path: Path, *, limit: int = 0) -> tuple[list[Conversation], ReadReport]:
    """Reads a JSONL, JSON (one list) or parquet file, told apart row by row.

    Args:
        path: the file.
        limit: most conversations to keep; 0: all.

    Raises:
        UserInputError: the file cannot be read, or no row of it can be used.
    """
    report = ReadReport(str(path))
    found: list[Conversation] = []
    for line, row in _rows(path):
        if limit and report.kept >= limit:
            break
        report.rows += 1
        notes: list[str] = []
        try:
            conversation = _conversation(row, report, notes)
        except DroppedRowError as error:
            report.drop(str(error), line)
            continue
        report.kept += 1
        report.tool_calls += sum(len(turn.calls) for turn in conversation.turns if isinstance(turn, AssistantTurn))
        report.changed.update(set(notes))
        found.append(conversation)
    if not found:
        reason = f"; most were left out for: {report.dropped.most_common(1)[0][0]}" if report.dropped else ""
        raise UserInputError("sft data", str(path), f"a file with at least one usable conversation{reason}")
    return found, report


def write_conversations(path: Path, conversations: Iterable[Conversation]) -> int:
    """Writes conversations as JSONL, one a line, in the layout that this package reads fastest; returns how many."""
    count = 0
    partial = path.with_name(path.name + ".partial")
    with partial.open("w", encoding="utf-8") as file:
        for conversation in conversations:
            file.write(json.dumps(_to_row(conversation), ensure_ascii=False) + "\n")
            count += 1
    partial.replace(path)
    return count


def _conversation(row: Any, report: ReadReport, notes: list[str]) -> Conversation:
    layout = layout_of(row) if isinstance(row, dict) else None
    if layout is None:
        raise DroppedRowError("no known layout")
    report.layouts[layout] += 1
    try:
        conversation = LAYOUTS[layout](row, notes)
        texts = [turn.text for turn in conversation.turns if not isinstance(turn, ToolTurn)]
        texts += [text for turn in conversation.turns if isinstance(turn, ToolTurn) for text in turn.responses]
        if not all(isinstance(text, str) for text in [*texts, conversation.system]):
            raise TypeError
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise DroppedRowError(f"malformed {layout} row") from error
    return checked(conversation, notes)


def _to_row(conversation: Conversation) -> dict[str, Any]:
    turns: list[dict[str, Any]] = []
    for turn in conversation.turns:
        if isinstance(turn, UserTurn):
            turns.append({"role": "user", "text": turn.text})
        elif isinstance(turn, ToolTurn):
            turns.append({"role": "tool", "responses": list(turn.responses)})
        else:
            calls = [{"name": call.name, "arguments": dict(call.arguments)} for call in turn.calls]
            turns.append({"role": "assistant", "text": turn.text, "calls": calls})
    tools = [
        {"name": t.name, "description": t.description, "parameters": dict(t.parameters)} for t in conversation.tools
    ]
    return {"tools": tools, "system": conversation.system, "turns": turns}


def _rows(path: Path) -> Iterator[tuple[int, Any]]:
    """(line or position, from 1; row). A line that is no JSON is a row of no layout."""
    accepted = "a readable .jsonl, .json or .parquet file"
    try:
        if path.suffix.lower() == ".parquet":
            yield from _parquet_rows(path)
            return
        with path.open("rb") as file:
            start = file.read(64).removeprefix(b"\xef\xbb\xbf").lstrip()
        if path.suffix.lower() == ".json" and start.startswith(b"["):
            yield from enumerate(json.loads(path.read_bytes().decode("utf-8-sig")), start=1)
            return
    except (OSError, ValueError, RecursionError) as error:
        raise UserInputError("sft data", str(path), f"{accepted} ({error})") from error
    for number, line in read_lines(path, "sft data"):
        yield number, _parsed(line)


def _parquet_rows(path: Path) -> Iterator[tuple[int, Any]]:
    import pyarrow  # type: ignore[import-untyped]
    from pyarrow import parquet

    number = 0
    try:
        for batch in parquet.ParquetFile(path).iter_batches(batch_size=256):
            for row in batch.to_pylist():
                number += 1
                yield number, row
    except pyarrow.ArrowException as error:
        raise OSError(str(error)) from error


def _parsed(line: bytes) -> Any:
    try:
        return parse_line(line, "")
    except UserInputError:
        return None
