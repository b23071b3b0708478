"""What is judged: the text a policy wrote in a rollout, turn by turn, and whether the rollout finished.

Only policy text is ever read. Tool output, templates and prompts are dropped here, so that nothing later can be
paid for a number that a tool printed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from rstar_protos.errors import UserInputError
from rstar_protos.vocabulary import EndReason
from rstar_protos.vocabulary import SpanKind as SegmentKind

__all__ = ["EndKind", "Segment", "SegmentKind", "Transcript", "end_kind", "end_number", "read_segments"]


class SegmentLike(Protocol):
    """A segment of this package, of rstar-model or of the reward contract: anything with these two."""

    @property
    def kind(self) -> object:
        """A `SegmentKind`, its value, or the number it has in the contract."""

    @property
    def text(self) -> str:
        """The text of the segment."""


@dataclass(frozen=True)
class Segment:
    """A run of text of one kind."""

    kind: SegmentKind
    text: str


class EndKind(Enum):
    """What the end of a rollout means for its judgement."""

    FINISHED = "finished"
    UNFINISHED = "unfinished"
    INFRASTRUCTURE = "infrastructure"


_KINDS: dict[int, SegmentKind] = {kind.to_proto(): kind for kind in SegmentKind}
# No reason at all is the contract's "unspecified".
_END_NUMBERS: dict[str, int] = {"": 0, **{reason.value: reason.to_proto() for reason in EndReason}}
_END_NAMES = {number: name for name, number in _END_NUMBERS.items()}
# What OpenAI-style servers call the same.
_ALIASES = {"unspecified": "", "stop": "answered", "length": "truncated", "tool_calls": "turn_limit"}


def end_kind(end_reason: object) -> tuple[EndKind, str]:
    """Reads an end reason: None, its name, an enum with that value, or its number in the contract.

    Returns:
        What it means, and its name.

    Raises:
        UserInputError: it is none of them.
    """
    name = _end_name(end_reason)
    if name in ("", "answered"):
        return EndKind.FINISHED, name
    return (EndKind.INFRASTRUCTURE if name == "infrastructure" else EndKind.UNFINISHED), name


def end_number(end_reason: object) -> int:
    """The number that an end reason has in the contract.

    Raises:
        UserInputError: as `end_kind`.
    """
    return _END_NUMBERS[_end_name(end_reason)]


def _end_name(end_reason: object) -> str:
    raw = end_reason.value if isinstance(end_reason, Enum) else end_reason
    if raw is None:
        name = ""
    elif isinstance(raw, int):
        name = _END_NAMES.get(raw, "?")
    elif isinstance(raw, str):
        name = _ALIASES.get(raw.lower(), raw.lower())
    else:
        name = "?"
    if name in _END_NUMBERS:
        return name
    accepted = f"one of {', '.join(reason.value for reason in EndReason)}, or nothing"
    raise UserInputError("end_reason", end_reason, accepted)


@dataclass(frozen=True)
class Transcript:
    """The policy's text, one entry per turn, the last turn last."""

    turns: tuple[str, ...]
    """Without tool calls."""
    last_written: str = ""
    """The last turn as it was written, tool calls included."""

    @classmethod
    def of(cls, response: str | Iterable[SegmentLike | Mapping[str, object]]) -> Transcript:
        """Reads a plain response, or segments.

        A plain response may be a whole ChatML transcript; then what is between other roles' headers and inside
        `<tool_response>` is dropped.

        Args:
            response: text, or segments with `kind` and `text` (mappings with `kind` or `role` work too).

        Raises:
            UserInputError: a segment has no usable kind or text.
        """
        if isinstance(response, str):
            written = list(_plain_turns(response))
            return cls(_for_people(written), written[-1] if written else "")
        turns: list[list[str]] = [[]]
        for index, segment in enumerate(response):
            kind, text = _read_segment(segment, index)
            if kind is SegmentKind.POLICY:
                turns[-1].append(text)
            elif kind in (SegmentKind.TOOL, SegmentKind.PROMPT):
                turns.append([])
            else:
                # The policy did not write what is between the parts, so they must not grow together.
                turns[-1].append("\n")
        joined = ["".join(parts) for parts in turns]
        written = [text for text in joined if text.strip()]
        return cls(_for_people(joined), written[-1] if written else "")


def read_segments(segments: Iterable[SegmentLike | Mapping[str, object]]) -> Iterable[tuple[int, str]]:
    """The segments as (number of the kind in the contract, text).

    Raises:
        UserInputError: as `Transcript.of`.
    """
    for index, segment in enumerate(segments):
        kind, text = _read_segment(segment, index)
        yield kind.to_proto(), text


def _read_segment(segment: object, index: int) -> tuple[SegmentKind, str]:
    if isinstance(segment, Mapping):
        kind, text = segment.get("kind", segment.get("role")), segment.get("text", segment.get("content"))
    else:
        kind, text = getattr(segment, "kind", None), getattr(segment, "text", None)
    raw = kind.value if isinstance(kind, Enum) else kind
    known: SegmentKind | None = None
    if isinstance(raw, int):
        known = _KINDS.get(raw)
    elif isinstance(raw, str):
        name = {"assistant": "policy", "user": "prompt", "system": "prompt"}.get(raw.lower(), raw.lower())
        known = next((member for member in SegmentKind if member.value == name), None)
    if known is None:
        accepted = f"one of {', '.join(member.value for member in SegmentKind)}"
        raise UserInputError(f"segments.{index}.kind", raw, accepted)
    if not isinstance(text, str):
        raise UserInputError(f"segments.{index}.text", text, "a string")
    return known, text


_HEADER, _END = "<|im_start|>", "<|im_end|>"


def _plain_turns(text: str) -> Iterable[str]:
    if _HEADER not in text:
        yield text
        return
    first, *blocks = text.split(_HEADER)
    # Text before the first header continues the prompt's assistant turn.
    for block in [f"assistant\n{first}", *blocks]:
        role, _, body = block.partition("\n")
        if role.strip() == "assistant" and body.strip():
            yield body.split(_END, 1)[0]


def _for_people(turns: Iterable[str]) -> tuple[str, ...]:
    """The turns without tool calls, whose code may well print a box, and without tool output; empty ones left out."""
    readable = (_without(_without(text, "tool_response"), "tool_call") for text in turns)
    return tuple(text for text in readable if text.strip())


def _without(text: str, tag: str) -> str:
    """Cuts out every `<tag>...</tag>`; one that is not closed reaches to the end."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    kept, position = [], 0
    while (start := text.find(opening, position)) >= 0:
        kept.append(text[position:start])
        end = text.find(closing, start)
        if end < 0:
            return "\n".join(kept)
        position = end + len(closing)
    kept.append(text[position:])
    return "\n".join(kept)
