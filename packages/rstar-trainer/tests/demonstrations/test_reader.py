"""Files of conversations, and what the report says of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rstar_protos.errors import UserInputError
from rstar_trainer.demonstrations import read_conversations, write_conversations

GOOD = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo\u2028!"}]}
EMPTY = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": ""}]}


def written(path: Path, *lines: Any) -> Path:
    path.write_text(
        "".join((line if isinstance(line, str) else json.dumps(line, ensure_ascii=False)) + "\n" for line in lines)
    )
    return path


def test_every_row_is_kept_or_counted_with_its_reason_and_line(tmp_path: Path) -> None:
    path = written(
        tmp_path / "a.jsonl", GOOD, "{broken", EMPTY, {"other": 1}, {"messages": [{"content": "x"}]}, "", EMPTY
    )
    found, report = read_conversations(path)
    assert len(found) == report.kept == 1
    assert report.rows == report.kept + sum(report.dropped.values()) == 6
    assert report.dropped == {"no known layout": 2, "empty assistant turn": 2, "malformed messages row": 1}
    assert report.examples["empty assistant turn"] == [3, 7]
    assert "left out 2: empty assistant turn (line 3, 7)" in "\n".join(report.lines())
    assert json.loads(json.dumps(report.to_json_dict()))["kept"] == 1


def test_the_limit_counts_usable_conversations(tmp_path: Path) -> None:
    found, report = read_conversations(written(tmp_path / "a.jsonl", EMPTY, GOOD, GOOD, GOOD), limit=2)
    assert (len(found), report.rows) == (2, 3)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    tools = [{"name": "f", "parameters": {"a": {"type": "int"}}}]
    call = {"from": "function_call", "value": '{"name": "f", "arguments": {"a": 1}}'}
    row = {
        "conversations": [
            {"from": "human", "value": "u"},
            call,
            {"from": "observation", "value": "r"},
            {"from": "gpt", "value": "a"},
        ],
        "tools": json.dumps(tools),
        "system": "s",
    }  # fmt: skip
    found, _ = read_conversations(written(tmp_path / "a.jsonl", row, GOOD))
    assert write_conversations(tmp_path / "b.jsonl", found) == 2
    again, report = read_conversations(tmp_path / "b.jsonl")
    assert again == found
    assert report.layouts == {"own": 2}
    assert report.tool_calls == 1


def test_a_json_list_and_parquet_are_read_too(tmp_path: Path) -> None:
    from pyarrow import Table, parquet

    (tmp_path / "a.json").write_text(json.dumps([GOOD, GOOD]))
    parquet.write_table(Table.from_pylist([GOOD]), tmp_path / "a.parquet")
    assert len(read_conversations(tmp_path / "a.json")[0]) == 2
    assert read_conversations(tmp_path / "a.parquet")[0] == read_conversations(tmp_path / "a.json")[0][:1]


@pytest.mark.parametrize("name", ["missing.jsonl", "a.parquet", "a.json", "a.jsonl"])
def test_a_file_without_any_use_is_an_error_in_one_line(tmp_path: Path, name: str) -> None:
    for existing in ("a.parquet", "a.json", "a.jsonl"):
        (tmp_path / existing).write_text("[")
    with pytest.raises(UserInputError, match="sft data"):
        read_conversations(tmp_path / name)


@pytest.mark.shared_data
@pytest.mark.parametrize(
    ("name", "kept", "calls"), [("sft_glaive_demo", 299, 210), ("sft_reason_tool_use_demo_50", 49, 66)]
)
def test_public_demo_sets_are_read(shared_data: Path, name: str, kept: int, calls: int) -> None:
    found, report = read_conversations(shared_data / f"{name}.jsonl")
    assert (len(found), report.kept, report.tool_calls) == (kept, kept, calls)
    assert sum(report.dropped.values()) == 1
