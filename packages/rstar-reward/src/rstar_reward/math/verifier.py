"""The mathematical verifier: quick decisions in the front, the full comparison in a worker."""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module

from rstar_reward.extraction import Declared, extract_answer
from rstar_reward.math.exact import ExactNumber, parse_exact, same_number
from rstar_reward.math.guards import too_complex
from rstar_reward.math.normalise import normalise
from rstar_reward.transcript import Transcript
from rstar_reward.verdict import VerdictStatus
from rstar_reward.verifiers import Judgement

__all__ = ["MathVerifier"]

_MAX_GOLD = 10_000
_MAX_CANDIDATE = 20_000


@lru_cache(maxsize=4096)
def _reference(gold: str) -> tuple[str, ExactNumber | None]:
    """A reference answer in one spelling, and its value if it is a number."""
    reference = normalise(gold)
    return reference, parse_exact(reference)


class MathVerifier:
    """Equality of mathematical answers."""

    def extract(self, transcript: Transcript) -> Declared:
        """`<answer>`, box, or a labelled last line."""
        return extract_answer(transcript)

    def quick(self, gold: str, declared: Declared) -> Judgement | None:
        """Decides numbers, equal texts, hedges and what exceeds the static limits."""
        if not gold.strip():
            return Judgement(VerdictStatus.BAD_GOLD, "the reference answer is empty")
        if len(gold) > _MAX_GOLD:
            return Judgement(VerdictStatus.BAD_GOLD, f"the reference answer is longer than {_MAX_GOLD} characters")
        if declared.hedged:
            return Judgement(VerdictStatus.HEDGED, declared.reason or "either one or the other is declared")
        text = declared.text or ""
        if len(text) > _MAX_CANDIDATE and not text.isdigit():
            return Judgement(VerdictStatus.TOO_COMPLEX, f"the answer is longer than {_MAX_CANDIDATE} characters")
        candidate = normalise(text)
        if not candidate.strip(" {}()[].,;?!-_"):
            return Judgement(VerdictStatus.NO_ANSWER, "the declared answer is empty")
        (reference, one), other = _reference(gold), parse_exact(candidate)
        if one is not None and other is not None:
            if same_number(one, other):
                return Judgement(VerdictStatus.CORRECT, "same number")
            return Judgement(VerdictStatus.WRONG, "a different number")
        if reference.replace(" ", "") == candidate.replace(" ", ""):
            return Judgement(VerdictStatus.CORRECT, "same text")
        problem = too_complex(candidate)
        if problem:
            return Judgement(VerdictStatus.TOO_COMPLEX, problem)
        return None

    def judge(self, gold: str, candidate: str) -> Judgement:
        """The full comparison."""
        from rstar_reward.math.equivalence import compare

        return compare(gold, candidate)

    def check_gold(self, gold: str) -> str | None:
        """Refuses what can be compared with nothing, not even with itself."""
        if not gold.strip():
            return "it is empty"
        if len(gold) > _MAX_GOLD:
            return f"it is longer than {_MAX_GOLD} characters"
        if parse_exact(normalise(gold)) is not None:
            return None
        from rstar_reward.math.equivalence import unusable_gold

        return unusable_gold(gold)

    def warm_up(self) -> None:
        """Imports SymPy and math-verify, and lets them build their tables."""
        self.judge(r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}")
        # What SymPy imports when it is first needed, which every worker would otherwise do by itself.
        for name in ("integrals.heurisch", "integrals.manualintegrate", "integrals.risch", "concrete.delta"):
            import_module(f"sympy.{name}")
        for text in (r"\int_0^{\sqrt{2}} x^2 \, dx", r"\sum_{k=1}^{n} k", r"\lim_{x \to 0} \frac{\sin x}{x}"):
            self.judge(text, r"\sin(y)")
            self.judge(text, text + "+0")
