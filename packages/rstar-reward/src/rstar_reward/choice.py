"""The verifier for multiple choice: which letter a response declares."""

from __future__ import annotations

import re

from rstar_reward.extraction import Declared, extract_answer
from rstar_reward.math.normalise import normalise
from rstar_reward.math.words import choice_letter
from rstar_reward.transcript import Transcript
from rstar_reward.verdict import VerdictStatus
from rstar_reward.verifiers import Judgement

__all__ = ["ChoiceVerifier"]

_MAX_LENGTH = 2000
_LEAD_IN = re.compile(r"(?:the )?(?:correct |final |best )?(?:option|choice|answer)(?: is)?[: ]+", re.IGNORECASE)
_SMALL = re.compile(r"\(? ?[a-j] ?\)?[.:]?")


class ChoiceVerifier:
    """Letter against letter, `A` to `J`.

    A reference may carry the text of its choice, `C) 42 m/s`; then a response that declares exactly that text instead
    of the letter is right too. Two letters are no answer.
    """

    def extract(self, transcript: Transcript) -> Declared:
        """As for mathematics: `<answer>`, box, or a labelled last line."""
        return extract_answer(transcript)

    def quick(self, gold: str, declared: Declared) -> Judgement | None:
        """Always decides."""
        if declared.hedged:
            return Judgement(VerdictStatus.HEDGED, declared.reason or "several choices are declared")
        return self.judge(gold, declared.text or "")

    def judge(self, gold: str, candidate: str) -> Judgement:
        """Correct for the letter of the reference."""
        letter = _letter(gold)
        if letter is None:
            return Judgement(VerdictStatus.BAD_GOLD, "it is no choice letter")
        if len(candidate) > _MAX_LENGTH:
            return Judgement(VerdictStatus.TOO_COMPLEX, f"the answer is longer than {_MAX_LENGTH} characters")
        chosen = _letter(candidate)
        if chosen is not None:
            status = VerdictStatus.CORRECT if chosen == letter else VerdictStatus.WRONG
            return Judgement(status, f"choice {chosen}")
        text = re.sub(r"^\W*[A-Ja-j]\b\W*", "", gold).split()
        if text and text == candidate.split():
            return Judgement(VerdictStatus.CORRECT, "the text of the choice")
        return Judgement(VerdictStatus.WRONG, "no single choice is declared")

    def check_gold(self, gold: str) -> str | None:
        """Refuses what names no letter."""
        return None if _letter(gold) else "it is no choice letter from A to J"

    def warm_up(self) -> None:
        """Needs nothing."""


def _letter(text: str) -> str | None:
    plain = _LEAD_IN.sub("", normalise(text[:_MAX_LENGTH]), count=1).strip(" .*")
    if _SMALL.fullmatch(plain):
        plain = plain.upper()
    return choice_letter(plain)
