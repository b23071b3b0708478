"""Problems from JSONL and parquet, in the plain and the verl layout, and errors that name the line."""

import json
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from rstar_eval.problems import load_problems
from rstar_protos.errors import UserInputError
from rstar_trainer.data import read_problems

VERL = {
    "data_source": "openai/gsm8k",
    "prompt": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "What is 6 times 7?"}],
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "42"},
    "extra_info": {"split": "train", "index": 0},
}


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text(
        "".join(json.dumps(row, ensure_ascii="\\ud8" in json.dumps(row)) + "\n" for row in rows), encoding="utf-8"
    )
    return path


def refused(path: Path, **options: Any) -> str:
    with pytest.raises(UserInputError) as caught:
        read_problems(path, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_plain_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", [{"id": "x", "problem": "1+1?", "answer": "2", "source": "me", "extra": [1]}])
    (problem,) = read_problems(path)
    assert (problem.problem_id, problem.text, problem.answer, problem.source) == ("x", "1+1?", "2", "me")


def test_rows_without_id_are_named_by_file_and_line(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", [{"problem": "a", "answer": 1}, {"problem": "b", "answer": 2}])
    assert [problem.problem_id for problem in read_problems(path)] == ["p-1", "p-2"]


@pytest.mark.parametrize(("answer", "text"), [(5, "5"), (-5, "-5"), (5.0, "5.0"), (0.5, "0.5"), ("7", "7")])
def test_answers_may_be_numbers(tmp_path: Path, answer: object, text: str) -> None:
    path = write(tmp_path / "p.jsonl", [{"problem": "a", "answer": answer}])
    assert read_problems(path)[0].answer == text


def test_an_answer_keeps_every_digit(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"problem": "a", "answer": 0.12345678901234567890}')
    assert read_problems(path)[0].answer == "0.12345678901234567890"


@pytest.mark.parametrize("answer", [math.nan, math.inf, "\ud800", None, "", "  ", True, [1], {"a": 1}])
def test_other_answers_are_refused_with_their_line(tmp_path: Path, answer: object) -> None:
    path = write(tmp_path / "p.jsonl", [{"problem": "a", "answer": "1"}, {"problem": "b", "answer": answer}])
    assert refused(path).startswith(f"{path}:2:")


def test_verl_rows(tmp_path: Path) -> None:
    (problem,) = read_problems(write(tmp_path / "v.jsonl", [VERL]))
    assert (problem.text, problem.answer, problem.source) == ("What is 6 times 7?", "42", "openai/gsm8k")


def test_the_bare_question_of_a_verl_row_is_preferred(tmp_path: Path) -> None:
    row = {**VERL, "extra_info": {"question": "6 * 7?", "index": 0}}
    assert read_problems(write(tmp_path / "v.jsonl", [row]))[0].text == "6 * 7?"


def test_training_and_evaluation_read_the_same_problems(tmp_path: Path) -> None:
    rows = [
        VERL,
        VERL,
        {**VERL, "extra_info": {"question": "6 * 7?"}},
        {"problem": " a\n", "answer": 2.50, "tags": ["t"]},
    ]
    path = write(tmp_path / "v.jsonl", rows)
    trained = [problem.as_eval() for problem in read_problems(path)]
    assert trained == load_problems(path)
    assert len({problem.problem_id for problem in trained}) == len(rows)


def test_verl_parquet(tmp_path: Path) -> None:
    path = tmp_path / "v.parquet"
    parquet.write_table(pa.Table.from_pylist([VERL, VERL]), path)
    problems = read_problems(path, integers_only=True)
    assert [(problem.problem_id, problem.answer) for problem in problems] == [
        ("openai/gsm8k/train/0", "42"),
        ("openai/gsm8k/train/0-2", "42"),
    ]


def test_plain_parquet(tmp_path: Path) -> None:
    path = tmp_path / "p.parquet"
    parquet.write_table(pa.table({"problem": ["a", "b"], "answer": [1, 2]}), path)
    assert [problem.answer for problem in read_problems(path)] == ["1", "2"]


def test_a_broken_parquet_file_is_an_input_error(tmp_path: Path) -> None:
    path = tmp_path / "p.parquet"
    path.write_bytes(b"PAR1 but not really")
    assert str(path) in refused(path)


def test_integer_check_names_file_line_and_value(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", [{"problem": "a", "answer": "1"}, {"problem": "b", "answer": "1/2"}])
    text = refused(path, integers_only=True)
    assert text.startswith(f"{path}:2: '1/2'")
    assert "integer" in text


def test_integers_are_normalised_only_where_integers_are_wanted(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", [{"problem": "a", "answer": "1,000"}])
    assert read_problems(path, integers_only=True)[0].answer == "1000"
    assert read_problems(path)[0].answer == "1,000"


def test_rows_after_the_limit_are_not_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"problem": "a", "answer": 1}\nnot json\n')
    assert len(read_problems(path, limit=1)) == 1


def test_lines_end_at_newlines_only(tmp_path: Path) -> None:
    text = "one\u2028two\x85three\x0bfour"
    path = write(tmp_path / "p.jsonl", [{"problem": text, "answer": 1}])
    assert read_problems(path)[0].text == text


def test_blank_lines_and_windows_line_ends_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"problem": "a", "answer": 1}\r\n\r\n  \n{"problem": "b", "answer": 2}')
    assert [problem.problem_id for problem in read_problems(path)] == ["p-1", "p-4"]


@pytest.mark.parametrize("line", [b"{", b"not json", b"\xff\xfe", b"[1]", b'"text"', b"{}", b'{"problem": ""}'])
def test_rows_that_are_not_problems_name_their_line(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(b'{"problem": "a", "answer": 1}\n' + line + b"\n")
    assert refused(path).startswith(f"{path}:2:")


def test_a_missing_column_is_told_with_both_layouts(tmp_path: Path) -> None:
    text = refused(write(tmp_path / "p.jsonl", [{"question": "a", "answer": 1}]))
    assert "plain (problem, answer)" in text
    assert "reward_model.ground_truth" in text


def test_equal_ids_are_refused_with_both_lines(tmp_path: Path) -> None:
    rows = [{"id": 1, "problem": "a", "answer": 1}, {"id": "1", "problem": "b", "answer": 2}]
    path = write(tmp_path / "p.jsonl", rows)
    text = refused(path)
    assert f"{path}:2:" in text
    assert f"{path}:1)" in text


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text("\n")
    assert "at least one problem" in refused(path)


@pytest.mark.parametrize("name", ["absent.jsonl", "absent.parquet"])
def test_a_missing_file_is_refused(tmp_path: Path, name: str) -> None:
    assert "existing" in refused(tmp_path / name)


def test_other_file_types_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    path.write_text("problem,answer\n")
    assert ".jsonl or .parquet" in refused(path)


@given(st.binary(max_size=200))
def test_any_bytes_give_problems_or_an_input_error(content: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "p.jsonl"
        path.write_bytes(content)
        try:
            problems = read_problems(path)
        except UserInputError:
            return
        assert all(problem.text and problem.answer for problem in problems)


@pytest.mark.shared_data
def test_gsm8k_is_read_whole(shared_data: Path) -> None:
    assert len(read_problems(shared_data / "gsm8k_train_2000.jsonl", integers_only=True)) == 2000
