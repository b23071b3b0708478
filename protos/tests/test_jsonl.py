"""JSON lines: what ends a line, what is skipped, and files that are hostile."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar_protos.errors import UserInputError
from rstar_protos.jsonl import check_other_file, format_line, read_rows

GOOD = b'{"text": "fine"}\n'


def written(folder: Path, content: bytes) -> Path:
    path = folder / "rows.jsonl"
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\r"])
def test_only_a_newline_ends_a_line(tmp_path: Path, separator: str) -> None:
    line = json.dumps({"text": f"a{separator}b"}, ensure_ascii=separator < " ").encode() + b"\r\n"
    (row,) = read_rows(written(tmp_path, line), "rows")
    assert row.values == {"text": f"a{separator}b"}


def test_a_byte_order_mark_and_empty_lines_are_skipped_but_counted(tmp_path: Path) -> None:
    rows = list(read_rows(written(tmp_path, b"\xef\xbb\xbf" + GOOD + b"\r\n  \n\n" + GOOD.strip()), "rows"))
    assert [row.number for row in rows] == [1, 5]
    assert rows[1].where == f"{tmp_path / 'rows.jsonl'}:5"


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"words",
        b"[1]",
        b"5",
        b"null",
        b'{"text": "\xff"}',
        b"\xff\xfe{\x00}\x00",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"n": ' + b"9" * 5000 + b"}",
        b'{"a": 1} {"b": 2}',
        b"\xef\xbb\xbf{}",
    ],
)
def test_a_hostile_line_is_refused_by_its_number_in_one_line(tmp_path: Path, line: bytes) -> None:
    rows = read_rows(written(tmp_path, GOOD + b"\n" + line + b"\n" + GOOD), "rows")
    assert next(rows).values == {"text": "fine"}
    with pytest.raises(UserInputError) as caught:
        next(rows)
    assert str(caught.value).startswith(f"{tmp_path / 'rows.jsonl'}:3: ")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400 + len(str(tmp_path))


@given(st.binary(max_size=200))
def test_any_bytes_give_objects_or_an_input_error(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = written(tmp_path_factory.mktemp("any"), content)
    try:
        rows = list(read_rows(path, "rows"))
    except UserInputError:
        return
    assert all(isinstance(row.values, dict) for row in rows)


def test_numbers_may_keep_the_spelling_of_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, b'{"a": 0.12345678901234567890, "b": ' + b"9" * 5000 + b', "c": NaN}')
    (row,) = read_rows(path, "rows", parse_number=str)
    assert row.values == {"a": "0.12345678901234567890", "b": "9" * 5000, "c": "NaN"}


def test_a_file_that_cannot_be_read_is_named_with_its_field(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.jsonl", tmp_path):
        with pytest.raises(UserInputError, match=f"^--problems: '{path}'"):
            list(read_rows(path, "--problems"))


@given(st.text(st.characters(exclude_categories=[])))
def test_any_text_is_written_as_one_utf8_line_that_reads_back(text: str) -> None:
    line = format_line({"text": text})
    assert line.count("\n") == 1
    assert json.loads(line.encode("utf-8")) == {"text": text}


def test_a_file_is_not_written_over_itself(tmp_path: Path) -> None:
    path = written(tmp_path, b"{}")
    check_other_file(path, tmp_path / "other.jsonl", "OUT")
    (tmp_path / "link.jsonl").symlink_to(path)
    for same in (path, tmp_path / "link.jsonl"):
        with pytest.raises(UserInputError, match=r"^OUT: "):
            check_other_file(path, same, "OUT")
