"""Seeded problems in disjoint splits.

A problem's split follows from a hash of its family and parameters, so that no problem of one split can appear in
another, whatever the seeds and counts asked for: `heldout` gets a quarter of the parameter space, `sft` a quarter,
`train` half. Wordings do not enter the hash: the same question in other words stays in the same split.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rstar_protos.errors import UserInputError
from rstar_trainer.problems.families import FAMILIES, family_named
from rstar_trainer.problems.family import Family, Parameters

__all__ = ["SPLITS", "TAGS", "UNSEEN_FAMILY", "UNSEEN_WORDING", "Problem", "Split", "generate", "split_of"]

Split = Literal["train", "heldout", "sft"]
SPLITS: tuple[Split, ...] = ("train", "heldout", "sft")
UNSEEN_FAMILY = "unseen_family"
UNSEEN_WORDING = "unseen_wording"
TAGS = (UNSEEN_FAMILY, UNSEEN_WORDING)
# Consecutive draws without a new problem after which a family counts as exhausted.
_PATIENCE = 10_000


@dataclass(frozen=True)
class Problem:
    """One integer-answer problem.

    Attributes:
        problem_id: family name and parameter hash; equal ids mean the same question, perhaps in other words.
        text: what the model is asked.
        answer: the gold answer, a decimal integer.
        family: name of the family.
        wording: number of the wording within the family.
        split: the split the problem belongs to.
        tags: `unseen_family` or `unseen_wording` where training never shows the family or the wording, and `level-N`.
        parameters: the integers of the problem, by name.
    """

    problem_id: str
    text: str
    answer: str
    family: str
    wording: int
    split: Split
    tags: tuple[str, ...]
    parameters: tuple[tuple[str, int], ...]


def _digest(family: str, parameters: Parameters) -> bytes:
    return hashlib.sha256(json.dumps([family, sorted(parameters.items())]).encode()).digest()


def split_of(family: str, parameters: Parameters) -> Split:
    """The split these parameters of this family belong to."""
    bucket = _digest(family, parameters)[0] % 4
    return "heldout" if bucket == 0 else "sft" if bucket == 1 else "train"


def _choose(split: Split, tag: str | None, families: Sequence[str] | None) -> list[tuple[Family, tuple[int, ...]]]:
    """The families to draw from, each with the wordings allowed."""
    named = FAMILIES if families is None else tuple(family_named(name) for name in families)
    if tag is None:
        chosen = [(family, family.seen_wordings) for family in named if not family.unseen]
    elif tag == UNSEEN_FAMILY:
        chosen = [(family, family.seen_wordings) for family in named if family.unseen]
    else:
        chosen = [(family, tuple(sorted(family.unseen_wordings))) for family in named if family.unseen_wordings]
    if tag is not None and split != "heldout":
        raise UserInputError("split", split, f"'heldout' with tag {tag!r}: what is unseen is never trained on")
    if not chosen:
        raise UserInputError("families", families, f"at least one family that fits tag {tag!r}")
    return chosen


def generate(
    split: Split,
    count: int,
    seed: int,
    *,
    tag: str | None = None,
    families: Sequence[str] | None = None,
) -> list[Problem]:
    """Draw distinct problems of one split, families taken in turn so that any prefix is nearly balanced.

    Args:
        split: "train", "heldout" or "sft".
        count: number of problems.
        seed: equal arguments give equal problems, on every machine and Python version.
        tag: None for what training sees the like of; "unseen_family" or "unseen_wording" (held-out split only) for what
            no supervised or reinforcement data contains.
        families: restrict to these families, by name.

    Raises:
        UserInputError: an unknown split, tag or family, a negative count, or more problems than the families have.
    """
    if split not in SPLITS:
        raise UserInputError("split", split, "one of " + ", ".join(SPLITS))
    if tag is not None and tag not in TAGS:
        raise UserInputError("tag", tag, "one of " + ", ".join(TAGS))
    if count < 0:
        raise UserInputError("count", count, "a number of problems, 0 or more")
    chosen = _choose(split, tag, families)
    # A string seed is hashed with SHA-512 by `random`, independent of PYTHONHASHSEED.
    rng = random.Random(f"problems {split} {tag} {seed}")  # noqa: S311  (not for security)
    problems: list[Problem] = []
    seen: set[str] = set()
    round_: list[tuple[Family, tuple[int, ...]]] = []
    while len(problems) < count:
        if not round_:
            round_ = list(chosen)
            rng.shuffle(round_)
        family, wordings = round_.pop()
        problems.append(_draw(family, wordings, split, tag, rng, seen))
    return problems


def _draw(
    family: Family,
    wordings: tuple[int, ...],
    split: Split,
    tag: str | None,
    rng: random.Random,
    seen: set[str],
) -> Problem:
    for _ in range(_PATIENCE):
        parameters = family.sample(rng)
        problem_id = f"{family.name}-{_digest(family.name, parameters).hex()[:12]}"
        if split_of(family.name, parameters) != split or problem_id in seen:
            continue
        seen.add(problem_id)
        wording = rng.choice(wordings)
        return Problem(
            problem_id=problem_id,
            text=family.text(wording, parameters, rng),
            answer=str(family.solve(parameters)),
            family=family.name,
            wording=wording,
            split=split,
            tags=(*((tag,) if tag else ()), f"level-{family.level}"),
            parameters=tuple(sorted(parameters.items())),
        )
    raise UserInputError("count", len(seen), f"fewer problems: family {family.name!r} has no more in split {split!r}")
