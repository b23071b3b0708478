"""A problem with its gold answer, as training and evaluation use it, and what counts as an integer answer."""

import re
from dataclasses import dataclass, field

from rstar_eval.problems import EvalProblem

_PLAIN = re.compile(r"([+-]?[0-9]+)(\.0+)?")
_GROUPED = re.compile(r"[+-]?[0-9]{1,3}(,[0-9]{3})+(\.0+)?")


@dataclass(frozen=True)
class TrainProblem:
    """One problem. The rollout side is given `problem_id` and `text` only, never `answer`.

    Attributes:
        problem_id: unique within its source.
        text: what the model is asked.
        answer: the gold answer.
        source: where it is from: a generator and its family, or a file with line.
        tags: what reports break results down by.
        where: file and line it was read from, for messages; empty for a generated one.
    """

    problem_id: str
    text: str
    answer: str
    source: str
    tags: tuple[str, ...] = ()
    where: str = field(default="", compare=False)

    def as_eval(self) -> EvalProblem:
        """The problem as evaluation and reward service know it."""
        return EvalProblem(
            self.problem_id, self.text, self.answer, self.tags, where=self.where or self.source, source=self.source
        )


def integer_answer(answer: str) -> str | None:
    """The integer that `answer` writes, without grouping commas, plus sign and ".0"; None when it is no integer."""
    text = answer.strip()
    if _GROUPED.fullmatch(text):
        text = text.replace(",", "")
    found = _PLAIN.fullmatch(text)
    return found[1].removeprefix("+") if found else None
