"""A reward function for TRL's GRPOTrainer and its like.

    GRPOTrainer(model=..., reward_funcs=[make_reward(column="answer")], train_dataset=...)

TRL itself is not needed to import this. What the infrastructure caused is None, which TRL leaves out of the group.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from rstar_protos.errors import UserInputError
from rstar_reward.judge import Response
from rstar_reward.verify import verify_many

__all__ = ["make_reward"]

Completion = str | Sequence[Mapping[str, Any]]


def make_reward(
    column: str = "answer", verifier: str = "math", end_tokens: Collection[int] | None = None
) -> Callable[..., list[float | None]]:
    """The reward function: 1.0, 0.0, or None for a completion that belongs in no group.

    Args:
        column: the column of the data set that holds the reference answers.
        verifier: the kind of answer.
        end_tokens: ids of the tokens that end a completion. When given, a completion whose last token is none of them
            was cut off and gets 0.

    Returns:
        A function with TRL's signature. It takes plain and conversational completions; of the latter only what the
        assistant wrote is read.
    """

    def answer_reward(
        completions: Sequence[Completion], completion_ids: Sequence[Sequence[int]] | None = None, **columns: Any
    ) -> list[float | None]:
        golds = columns.get(column)
        if golds is None or len(golds) != len(completions):
            raise UserInputError("column", column, f"a column of the data set: {', '.join(sorted(columns))}")
        finished = [True] * len(completions)
        if end_tokens is not None and completion_ids is not None:
            finished = [bool(ids) and ids[-1] in end_tokens for ids in completion_ids]
        pairs = [
            (str(gold), _response(completion) if whole else "")
            for gold, completion, whole in zip(golds, completions, finished, strict=True)
        ]
        return [verdict.reward for verdict in verify_many(pairs, verifier=verifier)]

    return answer_reward


def _response(completion: Completion) -> Response:
    if isinstance(completion, str):
        return completion
    return [{"role": message["role"], "content": _text(message.get("content"))} for message in completion]


def _text(content: object) -> str:
    """The text of a message: none beside bare tool calls, joined where it comes in parts."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    raise UserInputError("content", type(content).__name__, "messages with text")
