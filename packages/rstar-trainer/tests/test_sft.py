"""What SFT learns from: batches by the seed alone, from the generator, from scripts and from data sets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rstar_model.chat_format import ChatFormat
from rstar_model.testing import write_family
from rstar_model.tokenizer import Tokenizer, load_tokenizer
from rstar_model.types import SpanKind
from rstar_protos.errors import UserInputError
from rstar_trainer.problems import sft_examples
from rstar_trainer.recipe import Recipe, recipe_from_mapping
from rstar_trainer.sft import demonstration_ledger, read_demonstrations, recipe_data

SCRIPT = {"problem": "1 + 1?", "turns": [{"assistant": "call", "tool_response": "2"}, {"assistant": "2"}]}
CHAT = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]}
LONG = {"messages": [{"role": "user", "content": "Hi " * 900}, {"role": "assistant", "content": "Yo"}]}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("smollm2")
    write_family(folder, "smollm2")
    return load_tokenizer(folder)


def recipe(**sft: object) -> Recipe:
    return recipe_from_mapping({"name": "r", "sft": {"steps": 5, "batch_size": 3, "examples": 4, **sft}})


def written(path: Path, *rows: object) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_batches_are_a_function_of_the_recipe(tokenizer: Tokenizer) -> None:
    assert recipe_data(recipe(), tokenizer) == recipe_data(recipe(), tokenizer)
    other = recipe_from_mapping({**recipe().model_dump(), "seed": 2})
    assert recipe_data(other, tokenizer) != recipe_data(recipe(), tokenizer)


def test_every_example_is_seen_once_an_epoch(tokenizer: Tokenizer) -> None:
    batches = recipe_data(recipe(steps=4, batch_size=3, examples=4), tokenizer).batches
    assert [len(batch) for batch in batches] == [3] * 4
    order = [sequence.token_ids for batch in batches for sequence in batch]
    assert all(len(set(order[start : start + 4])) == 4 for start in (0, 4, 8))


def test_scripted_turns_keep_their_tags_and_only_they_carry_loss(tokenizer: Tokenizer) -> None:
    (example,) = sft_examples(1, 3)
    ledger = demonstration_ledger((example.problem.text, example.turns), ChatFormat.load("rstar"), tokenizer)
    texts = [tokenizer.decode(span.token_ids) for span in ledger.spans if span.kind is SpanKind.POLICY]
    assert texts == [f"{turn.assistant}<|im_end|>" for turn in example.turns]


def test_scripted_files_and_data_sets_are_told_apart(tmp_path: Path) -> None:
    scripted, report = read_demonstrations(written(tmp_path / "a.jsonl", SCRIPT, SCRIPT), 1)
    assert len(scripted) == 1
    assert report is None
    conversations, report = read_demonstrations(written(tmp_path / "b.jsonl", CHAT, {"x": 1}), 9)
    assert len(conversations) == 1
    assert report is not None
    assert report.dropped == {"no known layout": 1}


def test_a_printed_list_of_conversations_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps([CHAT, CHAT], indent=2), encoding="utf-8-sig")
    conversations, _ = read_demonstrations(tmp_path / "a.json", 9)
    assert len(conversations) == 2


@pytest.mark.parametrize("content", ["", "\n", "junk\n", '{"problem": "p", "turns": [{"assistant": 1}]}\n'])
def test_a_file_that_cannot_be_used_is_an_error_in_one_line(tmp_path: Path, content: str) -> None:
    (tmp_path / "a.jsonl").write_text(content)
    with pytest.raises(UserInputError):
        read_demonstrations(tmp_path / "a.jsonl", 9)


def test_a_tool_result_that_nobody_answers_is_refused(tmp_path: Path) -> None:
    wrong = {"problem": "p", "turns": [{"assistant": "call", "tool_response": "2"}]}
    with pytest.raises(UserInputError, match=":2: "):
        read_demonstrations(written(tmp_path / "a.jsonl", SCRIPT, wrong), 9)


def test_what_is_left_out_is_told(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = written(tmp_path / "a.jsonl", CHAT, LONG, {"x": 1})
    data = recipe_data(recipe(path=str(path), max_tokens=400), tokenizer)
    assert "left out 1: no known layout (line 3)" in "\n".join(data.notes)
    assert data.notes[-1] == "sft: 1 of 2 conversations are longer than max_tokens"
    assert all(len(sequence.token_ids) <= 400 for batch in data.batches for sequence in batch)


def test_nothing_short_enough_is_an_error_that_names_the_field(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = written(tmp_path / "a.jsonl", LONG)
    with pytest.raises(UserInputError, match=r"sft\.max_tokens"):
        recipe_data(recipe(path=str(path), max_tokens=64), tokenizer)
