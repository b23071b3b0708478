"""Own generator of integer-answer problems: families, disjoint splits, supervised examples in the paper's format."""

from rstar_trainer.problems.families import FAMILIES, family_named
from rstar_trainer.problems.family import Family
from rstar_trainer.problems.generate import (
    SPLITS,
    TAGS,
    UNSEEN_FAMILY,
    UNSEEN_WORDING,
    Problem,
    Split,
    generate,
    split_of,
)
from rstar_trainer.problems.sft import SftExample, SftTurn, run_trusted, sft_examples

__all__ = [
    "FAMILIES",
    "SPLITS",
    "TAGS",
    "UNSEEN_FAMILY",
    "UNSEEN_WORDING",
    "Family",
    "Problem",
    "SftExample",
    "SftTurn",
    "Split",
    "family_named",
    "generate",
    "run_trusted",
    "sft_examples",
    "split_of",
]
