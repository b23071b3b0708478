"""The full comparison of a reference answer with an extracted one."""

from __future__ import annotations

from rstar_reward.math.guards import too_complex
from rstar_reward.math.normalise import normalise
from rstar_reward.math.symbolic import symbolic_parse, symbolically_equal
from rstar_reward.verdict import VerdictStatus
from rstar_reward.verifiers import Judgement

__all__ = ["compare", "unusable_gold"]


def compare(gold: str, candidate: str) -> Judgement:
    """Judges an extracted answer; runs in a worker."""
    reference, answer = normalise(gold), normalise(candidate)
    if too_complex(reference):
        return Judgement(VerdictStatus.TOO_COMPLEX, "the reference can only be compared by its text")
    equal = symbolically_equal(reference, answer)
    if equal:
        return Judgement(VerdictStatus.CORRECT, "equivalent")
    return Judgement(VerdictStatus.WRONG, "not equivalent" if equal is False else "not a mathematical answer")


def unusable_gold(gold: str) -> str | None:
    """Why a reference answer cannot be used."""
    reference = normalise(gold)
    if too_complex(reference) or symbolic_parse(reference):
        return None
    return None if any(character.isalnum() for character in reference) else "it holds no value"
