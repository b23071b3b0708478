"""A turn of the policy cut into what a person wants to see apart: reasoning, calls, the answer; as the text comes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rstar_model.chat_format import ChatFormat

__all__ = ["Piece", "TurnView"]


@dataclass(frozen=True)
class Piece:
    """Text of one kind: "reasoning", "call" (whole, without its tags) or "answer"."""

    kind: str
    text: str


class TurnView:
    """Takes text in any portions; gives out pieces as soon as it is certain what they are.

    Reasoning and answers come in portions, a call when it is complete. Of tags nothing is given out but the text
    between them. Whatever the portions are, the pieces are the same when portions of one kind are joined.

    Args:
        chat_format: whose tags.
    """

    def __init__(self, chat_format: ChatFormat) -> None:
        self._openings = {chat_format.tool_call_open: "call", chat_format.answer_open: "answer"}
        self._closings = {"call": chat_format.tool_call_close, "answer": chat_format.answer_close}
        tag = chat_format.turn_prefill
        hidden = (chat_format.end_of_turn, tag, tag.replace("<", "</", 1))
        self._hidden = tuple(text for text in hidden if text)
        self._kind = "reasoning"
        self._text = ""

    def feed(self, text: str) -> Iterator[Piece]:
        """More text of the turn."""
        self._text += text
        while (found := self._first(self._markers())) is not None:
            start, marker = found
            yield from self._give(self._text[:start], complete=True)
            self._text = self._text[start + len(marker) :]
            if self._kind != "reasoning":
                self._kind = "reasoning"
            else:
                self._kind = self._openings.get(marker, "reasoning")
        if self._kind == "call":
            return
        # What may be the beginning of a tag waits.
        held = max((_overlap(self._text, marker) for marker in self._markers()), default=0)
        certain = self._text[: len(self._text) - held]
        self._text = self._text[len(certain) :]
        yield from self._give(certain)

    def end(self) -> Iterator[Piece]:
        """The turn has ended; an unclosed call is given out as reasoning, because it will not be run."""
        if self._kind == "call":
            self._kind = "reasoning"
        yield from self._give(self._text)
        self._text = ""

    def _markers(self) -> Sequence[str]:
        if self._kind == "reasoning":
            return (*self._openings, *self._hidden)
        return (self._closings[self._kind],)

    def _first(self, markers: Sequence[str]) -> tuple[int, str] | None:
        found = [(start, marker) for marker in markers if (start := self._text.find(marker)) >= 0]
        # Of two that begin at one place the longer one is meant.
        return min(found, key=lambda pair: (pair[0], -len(pair[1])), default=None)

    def _give(self, text: str, complete: bool = False) -> Iterator[Piece]:
        if text and (self._kind != "call" or complete):
            yield Piece(self._kind, text)


def _overlap(text: str, marker: str) -> int:
    """Length of the longest end of the text that the marker begins with."""
    for length in range(min(len(text), len(marker) - 1), 0, -1):
        if text.endswith(marker[:length]):
            return length
    return 0
