"""The plug-in point: a verifier knows how one kind of answer is judged; the service is the same for all.

A package registers one under the entry point group `rstar_reward.verifiers`; the entry point is a callable without
arguments (usually the class) that returns a `Verifier`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Protocol, runtime_checkable

from rstar_protos.errors import UserInputError
from rstar_reward.extraction import Declared
from rstar_reward.transcript import Transcript
from rstar_reward.verdict import VerdictStatus

__all__ = ["ENTRY_POINT_GROUP", "Judgement", "Verifier", "load_verifier", "verifier_names"]

ENTRY_POINT_GROUP = "rstar_reward.verifiers"

_BUILT_IN = {
    "math": "rstar_reward.math.verifier:MathVerifier",
    "exact": "rstar_reward.exact_match:ExactMatchVerifier",
    "choice": "rstar_reward.choice:ChoiceVerifier",
    "function_call": "rstar_reward.function_call:FunctionCallVerifier",
}


@dataclass(frozen=True)
class Judgement:
    """What comparing an answer with the reference came to."""

    status: VerdictStatus
    reason: str


@runtime_checkable
class Verifier(Protocol):
    """How one kind of answer is judged.

    `extract` and `quick` run in the front: linear time, nothing heavy imported. `judge`, `check_gold` and `warm_up`
    run in a worker process that is killed when they take too long, and that may start no program, change no file and
    connect to nothing. None of them may evaluate the texts as code.
    """

    def extract(self, transcript: Transcript) -> Declared:
        """The declared answer of a finished rollout."""

    def quick(self, gold: str, declared: Declared) -> Judgement | None:
        """The judgement when it needs no worker, else None."""

    def judge(self, gold: str, candidate: str) -> Judgement:
        """The judgement of an extracted answer."""

    def check_gold(self, gold: str) -> str | None:
        """Why a reference answer cannot be used, None when it can."""

    def warm_up(self) -> None:
        """Imports what `judge` needs, before workers are forked."""


@lru_cache(maxsize=64)
def load_verifier(name: str) -> Verifier:
    """The verifier of this name; "" is "math".

    Raises:
        UserInputError: there is none, or what is registered is not a verifier.
    """
    name = name or "math"
    if name in _BUILT_IN:
        module, _, attribute = _BUILT_IN[name].partition(":")
        factory = getattr(import_module(module), attribute)
    else:
        found = [point for point in entry_points(group=ENTRY_POINT_GROUP) if point.name == name]
        if not found:
            raise UserInputError("verifier", name, f"one of {', '.join(verifier_names())}")
        factory = found[0].load()
    verifier = factory()
    if not isinstance(verifier, Verifier):
        raise UserInputError("verifier", name, f"an entry point in {ENTRY_POINT_GROUP} that makes a Verifier")
    return verifier


def verifier_names() -> tuple[str, ...]:
    """The names that `load_verifier` knows, built-in ones first."""
    others = {point.name for point in entry_points(group=ENTRY_POINT_GROUP)} - set(_BUILT_IN)
    return (*_BUILT_IN, *sorted(others))
