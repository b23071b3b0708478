"""The verifier for answers that are compared as text: equal up to white space and the case of letters."""

from __future__ import annotations

from rstar_reward.extraction import Declared, extract_answer
from rstar_reward.transcript import Transcript
from rstar_reward.verdict import VerdictStatus
from rstar_reward.verifiers import Judgement

__all__ = ["ExactMatchVerifier"]


class ExactMatchVerifier:
    """Text against text."""

    def extract(self, transcript: Transcript) -> Declared:
        """As for mathematics: `<answer>`, box, or a labelled last line."""
        return extract_answer(transcript)

    def quick(self, gold: str, declared: Declared) -> Judgement | None:
        """Always decides."""
        return self.judge(gold, declared.text or "")

    def judge(self, gold: str, candidate: str) -> Judgement:
        """Correct when both are the same words."""
        if self.check_gold(gold):
            return Judgement(VerdictStatus.BAD_GOLD, "the reference answer is empty")
        same = gold.casefold().split() == candidate.casefold().split()
        return Judgement(VerdictStatus.CORRECT, "same text") if same else _DIFFERENT

    def check_gold(self, gold: str) -> str | None:
        """Refuses only an empty one."""
        return None if gold.strip() else "it is empty"

    def warm_up(self) -> None:
        """Needs nothing."""


_DIFFERENT = Judgement(VerdictStatus.WRONG, "different text")
