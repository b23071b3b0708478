r"""Which text a finished rollout declares as its answer. Linear in the length of the text.

The order of precedence:
1. the last `<answer>` block, in it the last top-level box, or a clear unboxed value;
2. without the tag: the last top-level box of the last policy turn;
3. without a box: a labelled line at the very end ("Answer: 4").
Never any number in free text. An empty declaration is no answer, whatever was said before it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rstar_reward._boxes import Box, top_level_boxes
from rstar_reward.transcript import Transcript

__all__ = ["Declared", "extract_answer"]


@dataclass(frozen=True)
class Declared:
    """A declared answer, or why there is none."""

    text: str | None
    reason: str = ""
    """Why there is none."""
    alternatives: bool = False
    """True when boxes were joined by "or": an answer only where the reference has several values itself."""
    hedged: bool = False
    """True when the policy left open which of several answers it means."""


def extract_answer(transcript: Transcript) -> Declared:
    """The declared answer of a finished rollout."""
    if not transcript.turns:
        return Declared(None, "the policy wrote nothing")
    last = _trim_end(transcript.turns[-1])
    block = _last_answer_block(last)
    if block is not None:
        return _from_block(block)
    declared = _last_box(last, strict=False) or _labelled_line(last)
    for turn in reversed(transcript.turns[:-1]):
        block = _last_answer_block(turn)
        if block is not None:
            tagged = _from_block(block)
            if declared is None or declared.text == tagged.text:
                return tagged
            return Declared(declared.text, "the last turn contradicts an earlier <answer>", hedged=True)
    return declared or Declared(None, "no <answer>, no box and no labelled answer at the end")


_SPECIAL_TOKENS_AT_END = re.compile(r"(?:\s|<\|[a-z_]{1,32}\|>|</s>)+\Z")


def _trim_end(text: str) -> str:
    # Only the tail is looked at: the pattern would otherwise restart at every space of the text.
    head, tail = text[:-512], text[-512:]
    return head + _SPECIAL_TOKENS_AT_END.sub("", tail)


_OPEN, _CLOSE = "<answer>", "</answer>"


def _last_answer_block(text: str) -> str | None:
    lower = text.lower()
    if len(lower) != len(text):  # a few letters change length; positions would no longer agree
        lower = text
    start = lower.rfind(_OPEN)
    if start < 0:
        return None
    end = lower.find(_CLOSE, start)
    if end >= 0:
        return text[start + len(_OPEN) : end]
    # Never closed: a block if it holds a box; else the tag was only talked about.
    unclosed = text[start + len(_OPEN) :]
    if top_level_boxes(unclosed):
        return unclosed
    end = lower.rfind(_CLOSE)
    if end >= 0:
        start = lower.rfind(_OPEN, 0, end)
        return text[start + len(_OPEN) : end] if start >= 0 else ""
    return unclosed


def _from_block(block: str) -> Declared:
    if not block.strip():
        return Declared(None, "the <answer> is empty")
    declared = _last_box(block, strict=True)
    if declared is not None:
        return declared
    if "\\boxed" in block or "\\fbox" in block:
        return Declared(None, "the box in the <answer> is not closed")
    return _clear_value(block)


# What may stand between boxes that form one list.
_JOIN_NOISE = re.compile(
    r"\$|\\[()\[\],;:! ]|\\q?quad(?![a-zA-Z])|\\(?:text|textrm|mathrm|mbox)(?![a-zA-Z])|[{}\s*]|\\\\|&"
)
_JOINERS = frozenset({"", ",", ";", "and", ",and", ";and"})
_OR_JOINERS = frozenset({"or", ",or", ";or", "/", "and/or"})
_DOUBT = re.compile(r"\b(?:or|either|alternatively|maybe|perhaps|possibly|unless|otherwise|if not)\b", re.IGNORECASE)
_MAX_GAP = 200


def _last_box(text: str, strict: bool) -> Declared | None:
    boxes = top_level_boxes(text)
    if not boxes:
        return None
    if not boxes[-1].content.strip():
        return Declared(None, "the last box is empty")
    group, alternatives = [boxes[-1]], False
    for before, after in zip(reversed(boxes[:-1]), reversed(boxes[1:]), strict=True):
        gap = text[before.end : after.start]
        if len(gap) > _MAX_GAP or not before.content.strip():
            break
        joiner = _JOIN_NOISE.sub("", gap).lower()
        if joiner in _OR_JOINERS:
            alternatives = True
        elif joiner not in _JOINERS:
            if _leaves_open(gap, before, after, strict):
                return Declared(boxes[-1].content.strip(), "several alternatives are declared", hedged=True)
            break
        group.append(before)
    contents = list(dict.fromkeys(box.content.strip() for box in reversed(group)))
    if len(contents) == 1:
        return Declared(contents[0])
    lead = text[max(0, group[-1].start - 60) : group[-1].start]
    either = alternatives and re.search(r"\beither\b", lead, re.IGNORECASE) is not None
    return Declared("; ".join(contents), alternatives=alternatives, hedged=either)


def _leaves_open(gap: str, before: Box, after: Box, strict: bool) -> bool:
    """True when two different boxes stand in one sentence with a word of doubt between them."""
    if before.content.strip() == after.content.strip() or not _DOUBT.search(gap):
        return False
    return strict or ("\n\n" not in gap and ". " not in gap)


_MATH_SPAN = re.compile(r"\$\$([^$]+)\$\$|\$([^$]+)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_NEGATION = re.compile(
    r"\b(?:not|no|never|cannot|can't|isn't|wrong|unless|unable|impossible|fail(?:ed|s)?|either|or|maybe|perhaps|if)\b",
    re.IGNORECASE,
)
_LEAD_IN = re.compile(
    r"(?:(?:so|thus|hence|therefore|then)[, ]+)?(?:the\s+)?(?:final\s+|correct\s+)?"
    r"(?:answer|value|result|solution|total|number)\s*(?:\s(?:is|equals)|[:=])\s*:?\s*",
    re.IGNORECASE,
)
_MAX_UNBOXED = 400


def _clear_value(block: str) -> Declared:
    value = _unwrap(block)
    lead = _LEAD_IN.match(value)
    if lead:
        value = _unwrap(value[lead.end() :])
    elif len(value) <= 4 * _MAX_UNBOXED and ("$" in value or "\\(" in value or "\\[" in value):
        spans = [next(group for group in found.groups() if group) for found in _MATH_SPAN.finditer(value)]
        words = _MATH_SPAN.sub(" ", value)
        if len(spans) == 1 and not _NEGATION.search(words):
            value = spans[0].strip()
    if not value:
        return Declared(None, "the <answer> is empty")
    if len(value) > _MAX_UNBOXED and not re.fullmatch(r"[-+0-9.,\s]+", value):
        return Declared(None, "the <answer> holds no box and no clear value")
    return Declared(value)


def _unwrap(text: str) -> str:
    """Strips white space, Markdown emphasis, one pair of math delimiters and a final full stop."""
    text = text.strip().strip("*_`").strip()
    if text.endswith(".") and not text.endswith("..."):
        text = text[:-1].rstrip().strip("*_`").strip()
    for opening, closing in (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]")):
        inner = text[len(opening) : len(text) - len(closing)]
        long_enough = len(text) > len(opening) + len(closing)
        if long_enough and text.startswith(opening) and text.endswith(closing) and opening not in inner:
            return inner.strip().rstrip(".").strip() if not inner.rstrip().endswith("...") else inner.strip()
    return text


_LABEL = re.compile(
    r"(?:^|(?<=[\s*#>.(]))(?:the\s+)?(?:final\s+)?answer(?:\s+is)?\s*[*_]{0,3}\s*(?::|(?<=is)\b)\s*", re.IGNORECASE
)
_PLEASANTRY = re.compile(r"\.?\s*I hope (?:it|this) is correct\.?\s*\Z", re.IGNORECASE)


def _labelled_line(text: str) -> Declared | None:
    # The label and its value are at the very end, or nothing is declared.
    tail = _PLEASANTRY.sub("", text[-(_MAX_UNBOXED + 200) :])
    labels = list(_LABEL.finditer(tail))
    if not labels:
        return None
    label = labels[-1]
    value = _unwrap(tail[label.end() :])
    if "\n" in value or not value or len(value) > _MAX_UNBOXED:
        return None
    # More than one sentence is talk, not a value.
    if re.search(r"[.!?]\s+\S", value):
        return None
    return Declared(value)
