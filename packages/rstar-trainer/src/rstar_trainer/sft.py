"""Non-reasoning SFT: teaches the tool format and nothing else (paper section 4).

Demonstrations go through the same chat format and token ledger as rollouts, so that the policy learns exactly the
tokens it will be asked to continue, and only assistant tokens carry loss.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rstar_model.chat_format import ChatFormat
from rstar_model.ledger import TokenLedger
from rstar_model.tokenizer import Tokenizer
from rstar_model.tools import PYTHON_TOOL
from rstar_model.types import SpanKind
from rstar_protos.errors import UserInputError
from rstar_trainer.problems import SftTurn, sft_examples
from rstar_trainer.recipe import Recipe
from rstar_trainer.seeds import derive_seed
from rstar_trainer.sequences import WeightedSequence

__all__ = ["Demonstration", "demonstration_ledger", "read_demonstrations", "recipe_batches", "supervised_batches"]

Demonstration = tuple[str, Sequence[SftTurn]]
"""A problem's text and the scripted turns that solve it."""


def demonstration_ledger(
    problem: str, turns: Sequence[SftTurn], chat_format: ChatFormat, tokenizer: Tokenizer
) -> TokenLedger:
    """The token ledger of a scripted conversation, as an engine would have produced it.

    Args:
        problem: text of the user turn.
        turns: assistant texts after the pre-filled tag, each with the tool output that follows.
        chat_format: how turns are rendered.
        tokenizer: of the policy.
    """
    ledger = TokenLedger(demonstration=True)
    ledger.append(SpanKind.PROMPT, chat_format.prompt_ids(tokenizer, problem, [PYTHON_TOOL]))
    end_of_turn = tokenizer.encode(chat_format.end_of_turn)
    for number, turn in enumerate(turns):
        ledger.append(SpanKind.POLICY, [*tokenizer.encode(turn.assistant), *end_of_turn], turn=number)
        if turn.tool_response is not None:
            for kind, ids in chat_format.tool_turn_spans(tokenizer, [turn.tool_response]):
                ledger.append(kind, ids, turn=number)
    return ledger


def supervised_batches(
    demonstrations: Sequence[Demonstration],
    chat_format: ChatFormat,
    tokenizer: Tokenizer,
    *,
    steps: int,
    batch_size: int,
    seed: int,
) -> list[list[WeightedSequence]]:
    """The batches of all steps: demonstrations shuffled anew for every epoch, by the seed alone."""
    sequences = [
        WeightedSequence.from_ledger(demonstration_ledger(problem, turns, chat_format, tokenizer))
        for problem, turns in demonstrations
    ]
    rng = random.Random(seed)  # noqa: S311 - order of examples, not security
    order: list[int] = []
    while len(order) < steps * batch_size:
        epoch = list(range(len(sequences)))
        rng.shuffle(epoch)
        order.extend(epoch)
    return [[sequences[i] for i in order[s * batch_size : (s + 1) * batch_size]] for s in range(steps)]


def recipe_batches(recipe: Recipe, tokenizer: Tokenizer) -> list[list[WeightedSequence]]:
    """The SFT batches of a recipe, from its file or from the quickstart's generator.

    Raises:
        UserInputError: an unusable file.
    """
    settings = recipe.sft
    if settings.path is not None:
        demonstrations = read_demonstrations(settings.path, settings.examples)
    else:
        families = settings.families or None
        examples = sft_examples(settings.examples, derive_seed(recipe.seed, "sft"), families=families)
        demonstrations = [(example.problem.text, example.turns) for example in examples]
    return supervised_batches(
        demonstrations,
        ChatFormat.load(recipe.model.chat_format),
        tokenizer,
        steps=settings.steps,
        batch_size=settings.batch_size,
        seed=derive_seed(recipe.seed, "sft-order"),
    )


def read_demonstrations(path: Path, limit: int) -> list[Demonstration]:
    """Reads scripted conversations: `{"problem": ..., "turns": [{"assistant": ..., "tool_response": ...}]}` a line.

    Args:
        path: JSONL file.
        limit: most rows taken.

    Raises:
        UserInputError: unreadable file or a row of another form, with its line number.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise UserInputError("sft.path", str(path), f"it must be a readable UTF-8 JSONL file ({error})") from error
    found: list[Demonstration] = []
    for number, line in enumerate(lines, start=1):
        if line.strip() and len(found) < limit:
            found.append(_demonstration(line, f"{path} line {number}"))
    if not found:
        raise UserInputError("sft.path", str(path), "it must hold at least one conversation")
    return found


def _demonstration(line: str, where: str) -> Demonstration:
    accepted = 'give {"problem": text, "turns": [{"assistant": text, "tool_response": text or null}, ...]}'
    try:
        record: Any = json.loads(line)
        turns = [SftTurn(turn["assistant"], turn.get("tool_response")) for turn in record["turns"]]
        problem = record["problem"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserInputError(where, line[:80], accepted) from error
    texts = [problem, *(turn.assistant for turn in turns)]
    answers = [turn.tool_response for turn in turns]
    well_typed = all(isinstance(t, str) for t in texts) and all(a is None or isinstance(a, str) for a in answers)
    # A tool result after the last turn would be answered by nobody, and a missing one would answer itself.
    ends_well = bool(turns) and answers[-1] is None and all(answer is not None for answer in answers[:-1])
    if not well_typed or not ends_well:
        raise UserInputError(where, line[:80], accepted)
    return problem, turns
