"""Reading problems: both layouts, both file kinds, and hostile files."""

import json
import re

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar_eval.problems import EvalProblem, load_problems
from rstar_protos.errors import UserInputError

VERL = {
    "data_source": "gsm8k",
    "prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 6*7?"}],
    "ability": "math",
    "reward_model": {"style": "rule", "ground_truth": "42"},
    "extra_info": {"split": "test", "index": 3},
}


def write(tmp_path, text, name="problems.jsonl"):
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def refused(path, *parts, **options):
    """The one-line message of the refusal, which must hold every part."""
    with pytest.raises(UserInputError) as caught:
        load_problems(path, **options)
    message = str(caught.value)
    assert "\n" not in message
    for part in (str(path), *parts):
        assert part in message
    return message


def test_plain_rows(tmp_path):
    path = write(
        tmp_path, '{"problem": "1+1?", "answer": "2", "id": "a", "tags": ["easy"]}\n{"problem": "x", "answer": 7}'
    )
    assert load_problems(path) == [
        EvalProblem("a", "1+1?", "2", ("easy",)),
        EvalProblem("problems-2", "x", "7"),
    ]


def test_verl_rows(tmp_path):
    path = write(tmp_path, json.dumps(VERL))
    assert load_problems(path) == [EvalProblem("gsm8k/test/3", "What is 6*7?", "42", ("gsm8k",))]


def test_the_bare_question_of_a_verl_row_is_preferred(tmp_path):
    row = {**VERL, "extra_info": {"question": "6*7?", "index": 3}}
    assert load_problems(write(tmp_path, json.dumps(row)))[0].problem == "6*7?"


def test_repeated_verl_rows_are_problems_of_their_own(tmp_path):
    found = load_problems(write(tmp_path, f"{json.dumps(VERL)}\n{json.dumps(VERL)}"))
    assert [problem.problem_id for problem in found] == ["gsm8k/test/3", "gsm8k/test/3-2"]


def test_parquet_and_jsonl_of_the_same_rows_agree(tmp_path):
    rows = [VERL, {**VERL, "extra_info": {"split": "test", "index": 4}}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "verl.parquet")
    lines = write(tmp_path, "\n".join(map(json.dumps, rows)), "verl.jsonl")
    assert load_problems(tmp_path / "verl.parquet") == load_problems(lines)


def test_parquet_plain_layout(tmp_path):
    rows = [{"id": 5, "problem": "1+1?", "answer": 2}, {"id": 6, "problem": "2+2?", "answer": 4}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "plain.parquet")
    assert load_problems(tmp_path / "plain.parquet") == [
        EvalProblem("5", "1+1?", "2"),
        EvalProblem("6", "2+2?", "4"),
    ]


# Everything except what JSON itself cannot carry to UTF-8.
texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda text: text.strip())


@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=8), st.booleans(), st.sampled_from(["\n", "\r\n"]))
def test_any_text_survives_the_file(tmp_path_factory, pairs, escape, newline):
    lines = [json.dumps({"problem": p, "answer": a}, ensure_ascii=escape) for p, a in pairs]
    path = write(tmp_path_factory.mktemp("any"), newline.join(lines))
    assert [(item.problem, item.answer) for item in load_problems(path)] == pairs


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c"])
def test_only_a_newline_ends_a_line(tmp_path, separator):
    row = json.dumps({"problem": f"a{separator}b", "answer": "1"}, ensure_ascii=False)
    assert load_problems(write(tmp_path, row))[0].problem == f"a{separator}b"


@pytest.mark.parametrize(
    ("spelling", "answer"),
    [("35", "35"), ("-2.50", "-2.50"), ("1" * 5000, "1" * 5000), ('"1/2"', "1/2"), ("1e3", "1e3")],
)
def test_answers_keep_the_spelling_of_the_file(tmp_path, spelling, answer):
    assert load_problems(write(tmp_path, f'{{"problem": "p", "answer": {spelling}}}'))[0].answer == answer


def test_byte_order_mark_and_empty_lines_are_skipped(tmp_path):
    path = write(tmp_path, b'\xef\xbb\xbf{"problem": "p", "answer": "1"}\n\n  \n{"problem": "q", "answer": "2"}\n')
    assert [problem.problem for problem in load_problems(path)] == ["p", "q"]


def test_tag_fields_become_tags(tmp_path):
    path = write(tmp_path, '{"problem": "p", "answer": "1", "level": 3, "subject": "Algebra"}')
    assert load_problems(path, tag_fields=["level", "subject"])[0].tags == ("level=3", "subject=Algebra")


def test_limit_reads_no_further(tmp_path):
    path = write(tmp_path, '{"problem": "p", "answer": "1"}\n{"problem": "q", "answer": "2"}\nnot json\n')
    assert len(load_problems(path, limit=2)) == 2


@pytest.mark.parametrize(
    ("row", "field"),
    [
        ('{"problem": "p"}', "answer"),
        ('{"problem": "p", "answer": null}', "answer"),
        ('{"problem": "p", "answer": ""}', "answer"),
        ('{"problem": "p", "answer": true}', "answer"),
        ('{"problem": "p", "answer": NaN}', "answer"),
        ('{"problem": "p", "answer": -Infinity}', "answer"),
        ('{"problem": "p", "answer": ["1"]}', "answer"),
        ('{"problem": "p", "answer": {"value": "1"}}', "answer"),
        ('{"problem": " ", "answer": "1"}', "problem"),
        ('{"problem": 5, "answer": "1"}', "problem"),
        (r'{"problem": "\ud800", "answer": "1"}', "problem"),
        ('{"question": "p", "answer": "1"}', "problem"),
        ("{}", "problem"),
        ('{"problem": "p", "answer": "1", "tags": "easy"}', "tags"),
        ('{"problem": "p", "answer": "1", "tags": [1]}', "tags[0]"),
        ('{"problem": "p", "answer": "1", "id": []}', "id"),
        ("[1]", "line"),
        ("{", "line"),
        ("5", "line"),
        ("[" * 100_000, "line"),
        ('{"prompt": [], "reward_model": {"ground_truth": "1"}}', "prompt"),
        ('{"prompt": [3], "reward_model": {"ground_truth": "1"}}', "prompt[0]"),
        ('{"prompt": [{"role": "user"}], "reward_model": {"ground_truth": "1"}}', "prompt[0].content"),
        ('{"prompt": [{"role": "assistant", "content": "x"}], "reward_model": {}}', "prompt[0].role"),
        ('{"prompt": "p"}', "reward_model"),
        ('{"prompt": "p", "reward_model": {}}', "reward_model.ground_truth"),
        ('{"prompt": "p", "reward_model": {"ground_truth": ["1", "2"]}}', "reward_model.ground_truth"),
        ('{"prompt": "p", "reward_model": {"ground_truth": "1"}, "extra_info": 3}', "extra_info"),
    ],
)
def test_bad_rows_are_refused_by_file_line_and_field(tmp_path, row, field):
    path = write(tmp_path, '{"problem": "fine", "answer": "1"}\n\n' + row + "\n")
    refused(path, f"{path}:3: ", "JSON" if field == "line" else f"field {field}")


def test_bytes_that_are_not_utf8_are_refused_by_line(tmp_path):
    refused(
        write(tmp_path, b'{"problem": "p", "answer": "1"}\n{"problem": "\xff", "answer": "1"}'), ".jsonl:2: ", "UTF-8"
    )


def test_two_problems_of_one_id_are_refused(tmp_path):
    row = '{"problem": "p", "answer": "1", "id": "same"}\n'
    refused(write(tmp_path, row + row), ".jsonl:2: ", "same", ".jsonl:1)")


def test_missing_tag_field_is_refused(tmp_path):
    refused(write(tmp_path, '{"problem": "p", "answer": "1"}'), ".jsonl:1: ", "level", tag_fields=["level"])


@pytest.mark.parametrize("content", [b"", b"\n\n"])
def test_file_without_problems_is_refused(tmp_path, content):
    refused(write(tmp_path, content), "at least one problem")


def test_missing_file_directory_and_unknown_kind_are_refused(tmp_path):
    refused(tmp_path / "absent.jsonl", "existing")
    refused(tmp_path, "existing")
    refused(write(tmp_path, "a,b", "problems.csv"), ".jsonl or .parquet")


def test_damaged_parquet_is_refused(tmp_path):
    refused(write(tmp_path, b"PAR1 not really", "x.parquet"), "parquet")


def test_parquet_errors_name_the_row(tmp_path):
    rows = [{"problem": "p", "answer": "1"}, {"problem": "q", "answer": None}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "x.parquet")
    refused(tmp_path / "x.parquet", ".parquet:2: ", "field answer")


def test_fingerprint_follows_text_and_answer():
    one = EvalProblem("a", "p", "1")
    assert one.fingerprint == EvalProblem("b", "p", "1", ("tag",)).fingerprint
    assert len({one.fingerprint, EvalProblem("a", "q", "1").fingerprint, EvalProblem("a", "p", "2").fingerprint}) == 3
    assert re.fullmatch("[0-9a-f]{16}", one.fingerprint)


@pytest.mark.shared_data
@pytest.mark.parametrize("name", ["gsm8k_train_2000", "math500", "aime24", "aime25", "hmmt25_feb"])
def test_every_row_of_a_real_benchmark_file_is_read(shared_data, name):
    path = shared_data / f"{name}.jsonl"
    problems = load_problems(path)
    assert len(problems) == path.read_bytes().count(b"\n")
    assert all(problem.answer and problem.problem for problem in problems)
