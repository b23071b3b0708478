"""Reading problems from JSONL and parquet files.

Two layouts, told apart row by row:

- plain: `problem` (text) and `answer` (text or number), optionally `id` and `source`;
- verl: `prompt` (chat messages) and `reward_model.ground_truth`, optionally `data_source` and
  `extra_info`. The question is `extra_info.question` when that is there, because the last user
  message may carry instructions for another answer format; otherwise it is that message.
"""

import dataclasses
import itertools
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rstar_protos.errors import UserInputError
from rstar_trainer.data.problem import TrainProblem, integer_answer

_LAYOUTS = (
    "a row should have problem and answer, or the verl columns prompt (chat messages) and reward_model.ground_truth"
)


def read_problems(path: Path, *, limit: int = 0, integers_only: bool = False) -> list[TrainProblem]:
    """Reads problems from a `.jsonl`/`.json` (one object per line) or `.parquet` file.

    Args:
        path: the file.
        limit: read at most so many rows; 0: all.
        integers_only: an answer that is no integer is an error; integers are normalised ("1,000" -> "1000").

    Raises:
        UserInputError: naming file, line and value of the first row that is not usable.
    """
    problems: list[TrainProblem] = []
    lines_by_id: dict[str, str] = {}
    for where, row in itertools.islice(_rows(path), limit or None):
        problem = _problem(where, row, path.stem)
        if integers_only:
            integer = integer_answer(problem.answer)
            if integer is None:
                raise UserInputError(where, problem.answer, "the answer should be an integer, such as 42")
            problem = dataclasses.replace(problem, answer=integer)
        if problem.problem_id in lines_by_id:
            raise UserInputError(
                where, problem.problem_id, f"ids should differ; {lines_by_id[problem.problem_id]} has it too"
            )
        lines_by_id[problem.problem_id] = where
        problems.append(problem)
    if not problems:
        raise UserInputError("file", str(path), "should hold at least one problem")
    return problems


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    if not path.is_file():
        raise UserInputError("file", str(path), "should be a JSONL or parquet file that exists")
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        yield from _parquet_rows(path)
    elif suffix in (".jsonl", ".json", ".ndjson"):
        yield from _jsonl_rows(path)
    else:
        raise UserInputError("file", str(path), "should end in .jsonl or .parquet")


def _jsonl_rows(path: Path) -> Iterator[tuple[str, Any]]:
    # A binary file is split at "\n" only; texts may hold U+2028 and other characters that look like line ends.
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            where = f"{path}:{number}"
            try:
                row = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
            except (ValueError, RecursionError) as error:
                shown = line[:60].decode("utf-8", "replace").strip()
                raise UserInputError(where, shown, f"should be one JSON object per line ({error})") from None
            yield where, row


def _parquet_rows(path: Path) -> Iterator[tuple[str, Any]]:
    import pyarrow  # type: ignore[import-untyped]
    from pyarrow import parquet

    number = 0
    try:
        for batch in parquet.ParquetFile(path).iter_batches(batch_size=1024):
            for row in batch.to_pylist():
                number += 1
                yield f"{path}:{number}", row
    except (pyarrow.ArrowException, OSError) as error:
        raise UserInputError("file", str(path), f"should be a readable parquet file ({error})") from None


def _problem(where: str, row: Any, stem: str) -> TrainProblem:
    if not isinstance(row, Mapping):
        raise UserInputError(where, _short(row), _LAYOUTS)
    line = where.rpartition(":")[2]
    if row.get("problem") is not None:
        text, answer = row["problem"], row.get("answer")
        source, identity = row.get("source"), row.get("id")
    elif row.get("prompt") is not None and isinstance(row.get("reward_model"), Mapping):
        extra = row.get("extra_info")
        extra = extra if isinstance(extra, Mapping) else {}
        question = extra.get("question")
        text = question if isinstance(question, str) and question.strip() else _last_user(row["prompt"])
        answer = row["reward_model"].get("ground_truth")
        # The index of verl files counts within one data source, which a mixture repeats.
        source, identity = row.get("data_source"), None
    else:
        raise UserInputError(where, _short(sorted(row)), _LAYOUTS)
    if not isinstance(text, str) or not text.strip():
        raise UserInputError(where, _short(text), "the problem should be a text that is not empty")
    return TrainProblem(
        problem_id=f"{stem}-{line}" if identity is None else str(identity),
        text=text.strip(),
        answer=_answer(where, answer),
        source=where if source is None else str(source),
        where=where,
    )


def _last_user(prompt: Any) -> Any:
    if not isinstance(prompt, list):
        return prompt
    texts = [
        message.get("content") for message in prompt if isinstance(message, Mapping) and message.get("role") == "user"
    ]
    return texts[-1] if texts else None


def _answer(where: str, value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, str) and value.strip():
        return value.strip()
    raise UserInputError(where, _short(value), "the answer should be a text or number that is not empty")


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."
