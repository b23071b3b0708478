"""What a family of problems is: wordings, parameters, an answer and correct code, kept together.

A family is data: its texts are `str.format` templates over the integer parameters (and over `name` and `thing`, two
words that vary the surface and do not change the answer), and its code templates are the programs that supervised
examples show. Every program of a family prints, or evaluates to, the family's answer.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

__all__ = ["NAMES", "THINGS", "Family", "Parameters"]

Parameters = Mapping[str, int]

NAMES = ("Mia", "Tom", "Ana", "Ben", "Lena", "Omar", "Ravi", "Zoe", "Ines", "Paul")
THINGS = ("pens", "books", "apples", "shells", "coins", "cards", "stamps", "nuts", "beads", "eggs")


@dataclass(frozen=True)
class Family:
    """One kind of integer-answer problem.

    Attributes:
        name: identifier, lower case with underscores.
        level: 1 one operation stated plainly, 2 a short story, 3 a program has to be composed.
        wordings: problem texts, as templates; the index is the wording's number.
        sample: draws the parameters; must use nothing but the given random generator.
        solve: the exact answer, computed without any of the code templates.
        codes: correct programs, as templates, in different styles; the last line prints or is the answer.
        unseen: the whole family is kept out of supervised and reinforcement data.
        unseen_wordings: numbers of the wordings kept out of supervised and reinforcement data.
    """

    name: str
    level: int
    wordings: tuple[str, ...]
    sample: Callable[[random.Random], dict[str, int]]
    solve: Callable[[Parameters], int]
    codes: tuple[str, ...]
    unseen: bool = False
    unseen_wordings: frozenset[int] = frozenset()

    @property
    def seen_wordings(self) -> tuple[int, ...]:
        """Numbers of the wordings that training may use."""
        return tuple(i for i in range(len(self.wordings)) if i not in self.unseen_wordings)

    def text(self, wording: int, parameters: Parameters, rng: random.Random) -> str:
        """The problem text; `rng` picks the person and the objects of the story."""
        return self.wordings[wording].format(name=rng.choice(NAMES), thing=rng.choice(THINGS), **parameters)

    def code(self, style: int, parameters: Parameters) -> str:
        """The program of the given style (an index into `codes`) for these parameters."""
        return self.codes[style].format(**parameters)
