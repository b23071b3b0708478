"""Supervised examples that teach the tool format and nothing else.

Each example is a problem of the `sft` split with a scripted conversation in the paper's format (section 2): one short
line that is not reasoning, a tool call as JSON, the tool's real output, the boxed answer inside answer tags. Words,
code style and arguments vary: with one wording for all, the policy turns deterministic, every group of rollouts has
equal rewards and reinforcement learning has nothing to learn from.
"""

from __future__ import annotations

import ast
import contextlib
import io
import random
from collections.abc import Sequence
from dataclasses import dataclass

from rstar_model.chat_format import ChatFormat
from rstar_model.tools import PYTHON_TOOL
from rstar_trainer.problems.families import family_named
from rstar_trainer.problems.generate import Problem, generate

__all__ = ["SftExample", "SftTurn", "run_trusted", "sft_examples"]

_BEFORE_CALL = (
    "I will run code.",
    "Let me compute it.",
    "I use the tool.",
    "Running Python for this.",
    "Code will tell.",
    "I compute this with Python.",
)
_AFTER_CALL = (
    "The tool gives {out}.",
    "The output is {out}.",
    "The result is {out}.",
    "It printed {out}.",
    "Done: {out}.",
)
_ANSWERS = (
    "\\boxed{{{out}}}",
    "The answer is \\boxed{{{out}}}.",
    "\n\\boxed{{{out}}}\n",
)


@dataclass(frozen=True)
class SftTurn:
    """One assistant turn and what the tool answered.

    Attributes:
        assistant: what the policy writes after the pre-filled `<reason>` tag, without the end-of-turn token.
        tool_response: the tool's output that follows, None after the last turn.
    """

    assistant: str
    tool_response: str | None


@dataclass(frozen=True)
class SftExample:
    """A problem with its scripted conversation; only the assistant texts carry loss."""

    problem: Problem
    turns: tuple[SftTurn, ...]


def run_trusted(code: str) -> str:
    """Run a program from our own templates; returns what the tool would show: stdout, else the last expression's value.

    For the code templates of this package only: nothing is isolated here.
    """
    tree = ast.parse(code)
    value: object = None
    namespace: dict[str, object] = {}
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        last = tree.body[-1]
        if isinstance(last, ast.Expr):
            body = ast.Module(body=tree.body[:-1], type_ignores=[])
            exec(compile(body, "<template>", "exec"), namespace)  # noqa: S102 - our own templates
            # Our own templates.
            value = eval(compile(ast.Expression(last.value), "<template>", "eval"), namespace)  # noqa: S307
        else:
            exec(compile(tree, "<template>", "exec"), namespace)  # noqa: S102 - our own templates
    return out.getvalue() or ("" if value is None else repr(value))


def sft_examples(
    count: int,
    seed: int,
    *,
    families: Sequence[str] | None = None,
    chat_format: ChatFormat | None = None,
) -> list[SftExample]:
    """Distinct scripted examples, equal for equal arguments.

    Args:
        count: number of examples.
        seed: seeds problems, wordings and styles.
        families: restrict to these families, by name; what supervised data leaves out, reinforcement has to find.
        chat_format: how a tool call and an answer are written; the paper's format if None.

    Raises:
        UserInputError: as `generate`.
    """
    form = chat_format or ChatFormat.load("rstar")
    rng = random.Random(f"sft {seed}")  # noqa: S311 - not for security
    return [_script(problem, form, rng) for problem in generate("sft", count, seed, families=families)]


def _script(problem: Problem, form: ChatFormat, rng: random.Random) -> SftExample:
    family = family_named(problem.family)
    code = family.code(rng.randrange(len(family.codes)), dict(problem.parameters))
    output = run_trusted(code)
    # The tool may be called with or without standard input; both are shown.
    arguments = {"code": code, "input": ""} if rng.random() < 0.5 else {"code": code}
    close = "</reason>\n" if form.turn_prefill else ""
    first = f"{rng.choice(_BEFORE_CALL)}{close}{form.tool_call_text(PYTHON_TOOL.name, arguments)}"
    said, answer = rng.choice(_AFTER_CALL), rng.choice(_ANSWERS)
    last = (said + close + form.answer_open + answer + form.answer_close).format(out=output.strip())
    return SftExample(problem, (SftTurn(first, output), SftTurn(last, None)))
