"""Problems to evaluate on, read from JSONL or parquet.

Two column layouts are understood, in both file kinds and row by row:

- plain: `problem` and `answer`, optionally `id` and `tags` (a list of texts);
- verl: `prompt` (a list of chat messages with exactly one user message), `reward_model.ground_truth`,
  optionally `data_source` (becomes a tag) and `extra_info.index` / `extra_info.split` (become the id).
  Its system message is dropped: the rollout service applies its own chat format.

Every error names file, line (row of a parquet file) and field. Lines end at "\\n" only: a line separator
inside a JSON text (U+2028, U+0085, form feed) does not split a problem in two.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rstar_protos.errors import UserInputError

__all__ = ["EvalProblem", "load_problems"]

_PLAIN = "plain (problem, answer)"
_VERL = "verl (prompt, reward_model.ground_truth)"


@dataclass(frozen=True)
class EvalProblem:
    """One problem with its gold answer, which the rollout side never sees.

    `problem_id` is unique within an evaluation; it keys the sampling noise, so that the same problem is
    sampled in the same way whatever stands around it. `tags` name the parts reported apart. `where` is the place
    it was read from, for messages.
    """

    problem_id: str
    problem: str
    answer: str
    tags: tuple[str, ...] = ()
    where: str = dataclasses.field(default="", compare=False)

    @property
    def fingerprint(self) -> str:
        """Changes when the text or the answer changes: results of another problem are never reused."""
        return hashlib.sha256(f"{self.problem}\x00{self.answer}".encode()).hexdigest()[:16]


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
        raise UserInputError("limit", limit, "give at least 1")
    file = Path(path)
    if not file.is_file():
        raise UserInputError("problems", str(file), "name an existing .jsonl or .parquet file")
    suffix = file.suffix.lower()
    if suffix in (".jsonl", ".json", ".ndjson"):
        rows = _jsonl_rows(file)
    elif suffix in (".parquet", ".pq"):
        rows = _parquet_rows(file)
    else:
        raise UserInputError("problems", str(file), "name a file ending in .jsonl or .parquet")
    problems: list[EvalProblem] = []
    seen: dict[str, str] = {}
    for where, row in rows:
        problem = _problem(row, where, default_id=f"{file.stem}-{len(problems)}", tag_fields=tag_fields)
        if problem.problem_id in seen:
            raise _bad(where, "id", problem.problem_id, f"an id not used before (used in {seen[problem.problem_id]})")
        seen[problem.problem_id] = where
        problems.append(problem)
        if len(problems) == limit:
            break
    if not problems:
        raise UserInputError("problems", str(file), "name a file with at least one problem")
    return problems


def _jsonl_rows(file: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    with file.open("rb") as lines:  # a binary file is split at b"\n" and nowhere else
        for number, raw in enumerate(lines, start=1):
            where = f"{file}, line {number}"
            try:
                text = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise _bad(where, "line", f"byte {error.start} is not UTF-8", "UTF-8 text") from None
            if not text.strip():
                continue
            try:
                row = json.loads(text, parse_int=_Number, parse_float=_Number, parse_constant=_Number)
            except json.JSONDecodeError as error:
                raise _bad(where, "line", f"{error.msg} at column {error.colno}", "one JSON object") from None
            except RecursionError:
                raise _bad(where, "line", "JSON nested too deeply", "one JSON object") from None
            if not isinstance(row, dict):
                raise _bad(where, "line", _shown(row), "one JSON object")
            yield where, row


def _parquet_rows(file: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    import pyarrow as pa  # type: ignore[import-untyped]  # ships no types
    import pyarrow.parquet as pq  # type: ignore[import-untyped]  # ships no types

    try:
        with pq.ParquetFile(file) as table:
            number = 0
            for batch in table.iter_batches(batch_size=1024):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{file}, row {number}", row
    except (pa.ArrowException, OSError) as error:
        first_line = str(error).split("\n", 1)[0]
        raise UserInputError("problems", str(file), f"name a readable parquet file ({first_line})") from None


def _problem(row: Mapping[str, Any], where: str, *, default_id: str, tag_fields: Sequence[str]) -> EvalProblem:
    tags = _tags(row.get("tags"), where)
    if row.get("problem") is not None:
        problem = _text(row["problem"], where, "problem")
        answer = _answer(row.get("answer"), where, "answer")
        problem_id = default_id if row.get("id") is None else _identifier(row["id"], where, "id")
    elif row.get("prompt") is not None:
        problem = _user_text(row["prompt"], where)
        answer = _ground_truth(row.get("reward_model"), where)
        problem_id = _verl_id(row, where, default_id)
        source = row.get("data_source")
        if source is not None:
            tags = (*tags, _identifier(source, where, "data_source"))
    else:
        columns = ", ".join(sorted(map(str, row))[:8]) or "no fields"
        raise _bad(where, "problem", f"missing; found {columns}", f"the layout {_PLAIN} or {_VERL}")
    for field in tag_fields:
        if row.get(field) is None:
            raise _bad(where, field, "missing", "a value in every row, as it is asked for as a tag")
        tags = (*tags, f"{field}={_identifier(row[field], where, field)}")
    return EvalProblem(problem_id, problem, answer, tuple(dict.fromkeys(tags)), where)


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
    extra = row.get("extra_info")
    if extra is None:
        return default_id
    if not isinstance(extra, Mapping):
        raise _bad(where, "extra_info", _shown(extra), "an object")
    if extra.get("index") is None:
        return default_id
    # An index alone repeats from split to split and from source to source.
    parts = [(row, "data_source"), (extra, "split"), (extra, "index")]
    return "/".join(
        _identifier(holder[name], where, name) for holder, name in parts if holder.get(name) not in (None, "")
    )


def _answer(value: Any, where: str, field: str) -> str:
    """A text, or a finite number in the spelling of the file."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise _bad(where, field, _shown(value), "a text or a number")
    text = str(value)
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
    return UserInputError.message(f"{where}, field {field}: {value}; expected {accepted}")
