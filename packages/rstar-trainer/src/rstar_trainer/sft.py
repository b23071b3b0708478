"""Non-reasoning SFT: teaches the tool format and nothing else (paper section 4).

Demonstrations go through the same chat format and token ledger as rollouts, so that the policy learns exactly the
tokens it will be asked to continue, and only assistant tokens carry loss.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten

from rstar_model.chat_format import ChatFormat
from rstar_model.ledger import TokenLedger
from rstar_model.tokenizer import Tokenizer
from rstar_model.tools import PYTHON_TOOL
from rstar_model.types import SpanKind
from rstar_protos.errors import UserInputError
from rstar_protos.jsonl import JsonRow, parse_line, read_lines, read_rows
from rstar_trainer.demonstrations import Conversation, ReadReport, conversation_ledger, read_conversations
from rstar_trainer.problems import SftTurn, sft_examples
from rstar_trainer.recipe import Recipe
from rstar_trainer.seeds import derive_seed
from rstar_trainer.sequences import WeightedSequence

__all__ = ["Demonstration", "SftData", "demonstration_ledger", "read_demonstrations", "recipe_data"]

Demonstration = tuple[str, Sequence[SftTurn]] | Conversation
"""A problem's text and the scripted turns that solve it, or a conversation of a data set."""


@dataclass(frozen=True)
class SftData:
    """What SFT learns from.

    Attributes:
        batches: one for each step.
        notes: what was left out of the file, and why; for the log.
    """

    batches: list[list[WeightedSequence]]
    notes: tuple[str, ...] = ()


def demonstration_ledger(demonstration: Demonstration, chat_format: ChatFormat, tokenizer: Tokenizer) -> TokenLedger:
    """The token ledger of a demonstration, as an engine would have produced it.

    Args:
        demonstration: scripted turns are assistant texts after the pre-filled tag, written in the format by hand.
        chat_format: how turns are rendered.
        tokenizer: of the policy.
    """
    if isinstance(demonstration, Conversation):
        return conversation_ledger(demonstration, chat_format, tokenizer)
    problem, turns = demonstration
    ledger = TokenLedger(demonstration=True)
    ledger.append(SpanKind.PROMPT, chat_format.prompt_ids(tokenizer, problem, [PYTHON_TOOL]))
    end_of_turn = tokenizer.encode(chat_format.end_of_turn)
    for number, turn in enumerate(turns):
        ledger.append(SpanKind.POLICY, [*tokenizer.encode(turn.assistant), *end_of_turn], turn=number)
        if turn.tool_response is not None:
            for kind, ids in chat_format.tool_turn_spans(tokenizer, [turn.tool_response]):
                ledger.append(kind, ids, turn=number)
    return ledger


def recipe_data(recipe: Recipe, tokenizer: Tokenizer) -> SftData:
    """The SFT batches of a recipe, from its file or from the quickstart's generator.

    Demonstrations are shuffled anew for every epoch, by the seed alone, so that any step can be resumed.

    Raises:
        UserInputError: an unusable file, or one in which everything is too long.
    """
    settings, notes = recipe.sft, []
    chat_format = ChatFormat.load(recipe.model.chat_format)
    demonstrations: Sequence[Demonstration]
    if settings.path is not None:
        demonstrations, report = read_demonstrations(settings.path, settings.examples)
        notes += list(report.lines()) if report else []
    else:
        examples = sft_examples(settings.examples, derive_seed(recipe.seed, "sft"), families=settings.families or None)
        demonstrations = [(example.problem.text, example.turns) for example in examples]
    ledgers = [demonstration_ledger(demonstration, chat_format, tokenizer) for demonstration in demonstrations]
    sequences = [WeightedSequence.from_ledger(ledger) for ledger in ledgers if len(ledger) <= settings.max_tokens]
    if not sequences:
        shortest = min(map(len, ledgers))
        raise UserInputError(
            "sft.max_tokens", settings.max_tokens, f"at least {shortest}, the tokens of the shortest conversation"
        )
    if len(sequences) < len(ledgers):
        notes.append(f"sft: {len(ledgers) - len(sequences)} of {len(ledgers)} conversations are longer than max_tokens")
    order = _order(len(sequences), settings.steps * settings.batch_size, derive_seed(recipe.seed, "sft-order"))
    size = settings.batch_size
    return SftData(
        [[sequences[i] for i in order[step * size : (step + 1) * size]] for step in range(settings.steps)],
        tuple(notes),
    )


def _order(items: int, count: int, seed: int) -> list[int]:
    rng = random.Random(seed)  # noqa: S311 - order of examples, not security
    order: list[int] = []
    while len(order) < count:
        epoch = list(range(items))
        rng.shuffle(epoch)
        order.extend(epoch)
    return order


def read_demonstrations(path: Path, limit: int) -> tuple[Sequence[Demonstration], ReadReport | None]:
    """Reads conversations in any layout of `rstar_trainer.demonstrations`, or scripted ones.

    A scripted one is `{"problem": ..., "turns": [{"assistant": ..., "tool_response": ...}]}`, its assistant texts
    written in the chat format by hand. There every row counts; a row that is wrong is an error.

    Args:
        path: JSONL file, or parquet for data sets.
        limit: most rows taken.

    Returns:
        The demonstrations, and for data sets the report of what was left out.

    Raises:
        UserInputError: unreadable file, a scripted row of another form with its line number, or no usable row.
    """
    if not _is_scripted(path):
        return read_conversations(path, limit=limit)
    return [_demonstration(row) for row in itertools.islice(read_rows(path, "sft.path"), limit)], None


def _is_scripted(path: Path) -> bool:
    """Whether the first row is a scripted conversation; a file of another form is for `read_conversations` to judge."""
    if path.suffix.lower() == ".parquet":
        return False
    _, line = next(read_lines(path, "sft.path"), (0, b""))
    if not line:
        raise UserInputError("sft.path", str(path), "a file with at least one conversation")
    try:
        first = parse_line(line, str(path))
    except UserInputError:  # the first line of a printed list, or not JSON at all
        return False
    return isinstance(first, dict) and {"problem", "turns"} <= first.keys()


def _demonstration(row: JsonRow) -> tuple[str, list[SftTurn]]:
    accepted = '{"problem": text, "turns": [{"assistant": text, "tool_response": text or null}, ...]}'
    try:
        turns = [SftTurn(turn["assistant"], turn.get("tool_response")) for turn in row.values["turns"]]
        problem = row.values["problem"]
    except (KeyError, TypeError, AttributeError) as error:
        raise UserInputError(row.where, shorten(str(row.values), 80), accepted) from error
    texts = [problem, *(turn.assistant for turn in turns)]
    answers = [turn.tool_response for turn in turns]
    well_typed = all(isinstance(t, str) for t in texts) and all(a is None or isinstance(a, str) for a in answers)
    # A tool result after the last turn would be answered by nobody, and a missing one would answer itself.
    ends_well = bool(turns) and answers[-1] is None and all(answer is not None for answer in answers[:-1])
    if not well_typed or not ends_well:
        raise UserInputError(row.where, shorten(str(row.values), 80), accepted)
    return problem, turns
