"""Problems to evaluate on or to train with, read from JSONL or parquet.

Two column layouts are understood, in both file kinds and row by row:

- plain: `problem` and `answer`, optionally `id`, `source` and `tags` (a list of texts);
- verl: `prompt` (a list of chat messages with exactly one user message), `reward_model.ground_truth`,
  optionally `data_source` (becomes source and tag) and `extra_info.index` / `extra_info.split` (become the id).
  The question is `extra_info.question` where that is there, because the user message may carry instructions for
  another answer format. System messages are dropped: the rollout service applies its own chat format.

A row without an id is named after file and line, `aime-3`. Texts and numbers stay as the file spells them. Every
error names file, line (row of a parquet file) and field.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rstar_protos.errors import UserInputError
from rstar_protos.jsonl import read_rows

__all__ = ["EvalProblem", "load_problems"]

_PLAIN = "plain (problem, answer)"
_VERL = "verl (prompt, reward_model.ground_truth)"


@dataclass(frozen=True)
class EvalProblem:
    """One problem with its gold answer, which the rollout side never sees.

    `problem_id` is unique within an evaluation; it keys the sampling noise, so that the same problem is
    sampled in the same way whatever stands around it. `tags` name the parts reported apart. `where` is the place
    it was read from, for messages; `source` the data set that its row names, if it does.
    """

    problem_id: str
    problem: str
    answer: str
    tags: tuple[str, ...] = ()
    where: str = dataclasses.field(default="", compare=False)
    source: str = dataclasses.field(default="", compare=False)

    @property
    def fingerprint(self) -> str:
        """Changes when the text or the answer changes: results of another problem are never reused."""
        return hashlib.sha256(f"{self.problem}\x00{self.answer}".encode()).hexdigest()[:16]


_Row = tuple[int, str, Mapping[str, Any]]
"""Line (row of a parquet file) from 1, its place for messages, columns."""


class _Number(str):
    """A JSON number in the spelling of the file: 2.50 stays 2.50 and a long integer stays exact."""


def load_problems(path: str | Path, *, tag_fields: Sequence[str] = (), limit: int | None = None) -> list[EvalProblem]:
    """Reads the problems of a `.jsonl` or `.parquet` file, in file order.

    Args:
        path: the file; `.jsonl`, `.json` (one object per line) or `.parquet`.
        tag_fields: columns whose values become tags, as "level=3".
        limit: read the first `limit` problems only.

    Raises:
        UserInputError: for a missing or unreadable file and for the first bad row, naming file, line and field.
    """
    if limit is not None and limit < 1:
        raise UserInputError("limit", limit, "a whole number from 1")
    file = Path(path)
    if not file.is_file():
        raise UserInputError("problems", str(file), "an existing .jsonl or .parquet file")
    suffix = file.suffix.lower()
    if suffix in (".jsonl", ".json", ".ndjson"):
        rows: Iterator[_Row] = read_rows(file, "problems", parse_number=_Number)
    elif suffix in (".parquet", ".pq"):
        rows = _parquet_rows(file)
    else:
        raise UserInputError("problems", str(file), "a file ending in .jsonl or .parquet")
    problems: list[EvalProblem] = []
    seen: dict[str, str] = {}
    for number, where, row in rows:
        problem = _problem(row, where, default_id=f"{file.stem}-{number}", tag_fields=tag_fields)
        if problem.problem_id in seen and row.get("id") is None:
            # Mixtures repeat a row, or an index: both are problems of their own.
            problem = dataclasses.replace(problem, problem_id=f"{problem.problem_id}-{number}")
        if problem.problem_id in seen:
            raise _bad(where, "id", problem.problem_id, f"an id not used before (used in {seen[problem.problem_id]})")
        seen[problem.problem_id] = where
        problems.append(problem)
        if len(problems) == limit:
            break
    if not problems:
        raise UserInputError("problems", str(file), "a file with at least one problem")
    return problems


def _parquet_rows(file: Path) -> Iterator[_Row]:
    import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
    import pyarrow.parquet as pq  # type: ignore[import-untyped]  # ships no types

    try:
        with pq.ParquetFile(file) as table:
            number = 0
            for batch in table.iter_batches(batch_size=1024):
                for row in batch.to_pylist():
                    number += 1
                    yield number, f"{file}:{number}", row
    except (pa.ArrowException, OSError) as error:
        first_line = str(error).split("\n", 1)[0]
        raise UserInputError("problems", str(file), f"a readable parquet file ({first_line})") from None


def _problem(row: Mapping[str, Any], where: str, *, default_id: str, tag_fields: Sequence[str]) -> EvalProblem:
    tags = _tags(row.get("tags"), where)
    source = ""
    if row.get("problem") is not None:
        problem = _text(row["problem"], where, "problem")
        answer = _answer(row.get("answer"), where, "answer")
        problem_id = default_id if row.get("id") is None else _identifier(row["id"], where, "id")
        source = "" if row.get("source") is None else _identifier(row["source"], where, "source")
    elif row.get("prompt") is not None:
        problem = _question(row, where)
        answer = _ground_truth(row.get("reward_model"), where)
        problem_id = _verl_id(row, where, default_id)
        if row.get("data_source") is not None:
            source = _identifier(row["data_source"], where, "data_source")
            tags = (*tags, source)
    else:
        columns = ", ".join(sorted(map(str, row))[:8]) or "no fields"
        raise _bad(where, "problem", f"missing; found {columns}", f"the layout {_PLAIN} or {_VERL}")
    for field in tag_fields:
        if row.get(field) is None:
            raise _bad(where, field, "missing", "a value in every row, as it is asked for as a tag")
        tags = (*tags, f"{field}={_identifier(row[field], where, field)}")
    return EvalProblem(problem_id, problem, answer, tuple(dict.fromkeys(tags)), where, source)


def _question(row: Mapping[str, Any], where: str) -> str:
    question = _extra_info(row, where).get("question")
    if question not in (None, ""):
        return _text(question, where, "extra_info.question")
    return _user_text(row["prompt"], where)


def _user_text(prompt: Any, where: str) -> str:
    if isinstance(prompt, str) and not isinstance(prompt, _Number):
        return _text(prompt, where, "prompt")
    if not isinstance(prompt, list):
        raise _bad(where, "prompt", _shown(prompt), "a list of chat messages")
    texts = []
    for index, message in enumerate(prompt):
        field = f"prompt[{index}]"
        if not isinstance(message, Mapping):
            raise _bad(where, field, _shown(message), "a message with role and content")
        role = message.get("role")
        if role == "user":
            texts.append(_text(message.get("content"), where, f"{field}.content"))
        elif role != "system":
            raise _bad(where, f"{field}.role", _shown(role), "system or user")
    if len(texts) != 1:
        raise _bad(where, "prompt", f"{len(texts)} user messages", "exactly one user message")
    return texts[0]


def _ground_truth(reward_model: Any, where: str) -> str:
    if not isinstance(reward_model, Mapping):
        raise _bad(where, "reward_model", _shown(reward_model), "an object with ground_truth")
    truth = reward_model.get("ground_truth")
    if isinstance(truth, list) and len(truth) == 1:  # some verl data sets wrap the one answer
        truth = truth[0]
    return _answer(truth, where, "reward_model.ground_truth")


def _verl_id(row: Mapping[str, Any], where: str, default_id: str) -> str:
    if row.get("id") is not None:
        return _identifier(row["id"], where, "id")
    extra = _extra_info(row, where)
    if extra.get("index") is None:
        return default_id
    # An index alone repeats from split to split and from source to source.
    parts = [(row, "data_source"), (extra, "split"), (extra, "index")]
    return "/".join(
        _identifier(holder[name], where, name) for holder, name in parts if holder.get(name) not in (None, "")
    )


def _extra_info(row: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    extra = row.get("extra_info")
    if extra is None:
        return {}
    if not isinstance(extra, Mapping):
        raise _bad(where, "extra_info", _shown(extra), "an object")
    return extra


def _answer(value: Any, where: str, field: str) -> str:
    """A text, or a finite number in the spelling of the file; parquet, which has none, gives 5.0 as 5."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise _bad(where, field, _shown(value), "a text or a number")
    text = str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
    is_number = isinstance(value, (_Number, int, float))
    if is_number and text.lstrip("-").lower() in ("nan", "infinity", "inf"):
        raise _bad(where, field, text, "a finite number")
    return _utf8(text, where, field)


def _text(value: Any, where: str, field: str) -> str:
    if not isinstance(value, str) or isinstance(value, _Number):
        raise _bad(where, field, _shown(value), "a text")
    return _utf8(value, where, field)


def _identifier(value: Any, where: str, field: str) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise _bad(where, field, _shown(value), "a text or a number")
    return _utf8(str(value), where, field)


def _tags(value: Any, where: str) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise _bad(where, "tags", _shown(value), "a list of texts")
    return tuple(_text(tag, where, f"tags[{index}]") for index, tag in enumerate(value))


def _utf8(text: str, where: str, field: str) -> str:
    if not text.strip():
        raise _bad(where, field, _shown(text), "a text that is not empty")
    if not _encodes(text):
        raise _bad(where, field, "a lone surrogate", "text that can be written as UTF-8")
    return text


def _encodes(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _shown(value: Any) -> str:
    """The value on one short line; a missing one by that name."""
    if value is None:
        return "missing"
    if isinstance(value, _Number):
        return str(value)[:60]
    text = ascii(value) if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _bad(where: str, field: str, value: str, accepted: str) -> UserInputError:
    return UserInputError.message(f"{where}: field {field}: {value}; accepted: {accepted}")
