r"""The verifier for function calls: name, arguments, and the values that each argument may have.

A reference is JSON in one of two forms:

- the form of the Berkeley Function-Calling Leaderboard, `[{"get_weather": {"city": ["Oslo"], "unit": ["C", ""]}}]`:
  for each argument the values that are right; "" among them means that it may be left out;
- calls as a model writes them, `[{"name": "get_weather", "arguments": {"city": "Oslo"}}]`, or one of them alone:
  exactly these arguments.

An empty list means that no function is to be called. Calls of one turn may come in any order, each exactly once.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from rstar_reward._call_texts import Call, CallSyntaxError, read_calls, strict_json
from rstar_reward.extraction import Declared, extract_answer
from rstar_reward.transcript import Transcript
from rstar_reward.verdict import VerdictStatus
from rstar_reward.verifiers import Judgement

__all__ = ["FunctionCallVerifier"]

_MAX_LENGTH = 50_000
_MAX_CALLS = 64
_OPEN, _CLOSE = "<tool_call>", "</tool_call>"
_LOOKS_LIKE_CALLS = re.compile(r"[\[{]|[A-Za-z_][\w.]*\(")
_FENCE = re.compile(r"```[a-z]*\n(.*)\n```", re.DOTALL)


class FunctionCallVerifier:
    """Calls against the calls of the reference."""

    def extract(self, transcript: Transcript) -> Declared:
        """The `<tool_call>` blocks of the last turn, else its `<answer>`, else the turn itself if it holds only calls.

        Text "" when a turn was written that calls nothing, which may be what was asked for.
        """
        if not transcript.last_written.strip():
            return Declared(None, "the policy wrote nothing")
        written = transcript.last_written
        start = written.find(_OPEN)
        if start >= 0:
            end = written.rfind(_CLOSE)
            return Declared(written[start : end + len(_CLOSE)] if end > start else written[start:])
        text = extract_answer(transcript).text if "<answer>" in written.lower() else written
        text = (text or "").strip()
        if fenced := _FENCE.fullmatch(text):
            text = fenced[1].strip()
        return Declared(text if _LOOKS_LIKE_CALLS.match(text) else "")

    def quick(self, gold: str, declared: Declared) -> Judgement | None:
        """Decides where nothing is called."""
        if len(declared.text or "") > _MAX_LENGTH:
            return Judgement(VerdictStatus.TOO_COMPLEX, f"the calls are longer than {_MAX_LENGTH} characters")
        if declared.text:
            return None
        expected = _reference(gold)
        if isinstance(expected, str):
            return Judgement(VerdictStatus.BAD_GOLD, expected)
        if expected:
            return Judgement(VerdictStatus.NO_ANSWER, "no function is called")
        return Judgement(VerdictStatus.CORRECT, "no function is called, as it should be")

    def judge(self, gold: str, candidate: str) -> Judgement:
        """Correct when every call of the reference is made once, and no other."""
        expected = _reference(gold)
        if isinstance(expected, str):
            return Judgement(VerdictStatus.BAD_GOLD, expected)
        try:
            calls = read_calls(candidate)
        except CallSyntaxError as error:
            return Judgement(VerdictStatus.WRONG, f"the calls cannot be read: {error}")
        if len(calls) != len(expected):
            return Judgement(VerdictStatus.WRONG, f"{len(calls)} calls instead of {len(expected)}")
        unmet = _unmet(expected, calls)
        if unmet is None:
            return Judgement(VerdictStatus.CORRECT, "the calls of the reference")
        return Judgement(VerdictStatus.WRONG, f"no call fits {unmet.name}")

    def check_gold(self, gold: str) -> str | None:
        """Refuses what is in neither form."""
        expected = _reference(gold)
        return expected if isinstance(expected, str) else None

    def warm_up(self) -> None:
        """Needs nothing."""


class _Expected:
    """A call of the reference: each argument's right values, and which arguments may be left out."""

    def __init__(self, name: str, arguments: Mapping[str, Sequence[Any]], nested_choices: bool) -> None:
        self.name, self.arguments, self.nested_choices = name, arguments, nested_choices

    def fits(self, call: Call) -> bool:
        # Some interfaces allow no dots in names.
        if call.name != self.name and call.name != self.name.replace(".", "_"):
            return False
        return _same_members(call.arguments, self.arguments, self.nested_choices)


@lru_cache(maxsize=4096)
def _reference(gold: str) -> tuple[_Expected, ...] | str:
    """The calls of a reference answer, or why it cannot be used."""
    if len(gold) > _MAX_LENGTH:
        return f"it is longer than {_MAX_LENGTH} characters"
    try:
        stated = strict_json(gold)
    except CallSyntaxError as error:
        return f"it is not JSON: {error}"
    entries = stated if isinstance(stated, list) else [stated]
    if len(entries) > _MAX_CALLS:
        return f"it has more than {_MAX_CALLS} calls"
    expected = []
    for entry in entries:
        if isinstance(entry, dict) and isinstance(entry.get("name"), str) and isinstance(entry.get("arguments"), dict):
            exactly = {name: [value] for name, value in entry["arguments"].items()}
            expected.append(_Expected(entry["name"], exactly, nested_choices=False))
        elif isinstance(entry, dict) and len(entry) == 1 and _has_choices(next(iter(entry.values()))):
            [(name, choices)] = entry.items()
            expected.append(_Expected(name, choices, nested_choices=True))
        else:
            return f"it is no call with arguments: {json.dumps(entry)[:80]}"
    return tuple(expected)


def _has_choices(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(choices, list) for choices in value.values())


def _unmet(expected: Sequence[_Expected], calls: Sequence[Call]) -> _Expected | None:
    """A call of the reference for which none is left, None when all are met: a matching by augmenting paths."""
    fitting = [[index for index, call in enumerate(calls) if wanted.fits(call)] for wanted in expected]
    taken: dict[int, int] = {}

    def place(wanted: int, tried: set[int]) -> bool:
        for index in fitting[wanted]:
            if index not in tried:
                tried.add(index)
                if index not in taken or place(taken[index], tried):
                    taken[index] = wanted
                    return True
        return False

    return next((expected[wanted] for wanted in range(len(expected)) if not place(wanted, set())), None)


def _same_members(given: Mapping[str, Any], choices: Mapping[str, Sequence[Any]], nested: bool) -> bool:
    if any(name not in choices for name in given):
        return False
    return all(
        any(_same(given[name], choice, nested) for choice in right) if name in given else nested and "" in right
        for name, right in choices.items()
    )


def _same(given: Any, right: Any, nested: bool) -> bool:
    """Whether a value is the right one; types count, except that 5 and 5.0 are one number."""
    if isinstance(given, bool) or isinstance(right, bool) or given is None or right is None:
        return given is right
    if isinstance(given, str) and isinstance(right, str):
        return _plain(given) == _plain(right)
    if isinstance(given, (int, float)) and isinstance(right, (int, float)):
        return given == right
    if isinstance(given, list) and isinstance(right, list):
        return len(given) == len(right) and all(
            _same(one, other, nested) for one, other in zip(given, right, strict=True)
        )
    if isinstance(given, dict) and isinstance(right, dict):
        choices = {name: value if nested and isinstance(value, list) else [value] for name, value in right.items()}
        return _same_members(given, choices, nested)
    return False


def _plain(text: str) -> str:
    """A string without what the leaderboard holds for a matter of style: case, spaces, light punctuation, quotes."""
    return re.sub(r"[ ,./\-_*^]", "", text).casefold().replace("'", '"')
