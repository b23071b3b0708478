"""JSON lines as users write them, read and written in one way by every command.

Lines end at "\\n" only: U+2028, U+0085 and form feeds are characters that a JSON text may hold. A byte order mark and
empty lines are skipped. Whatever is wrong becomes a `UserInputError` that says `path:line`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rstar_protos.errors import UserInputError

__all__ = ["JsonRow", "check_other_file", "format_line", "parse_line", "read_lines", "read_rows"]

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class JsonRow(NamedTuple):
    """One object of a file.

    Attributes:
        number: of its line, from 1; empty lines count.
        where: `path:line`, as messages name it.
        values: the object.
    """

    number: int
    where: str
    values: dict[str, Any]


def read_rows(path: Path, field: str, *, parse_number: Callable[[str], Any] | None = None) -> Iterator[JsonRow]:
    """The objects of a JSON lines file, read as they are asked for.

    Args:
        path: the file.
        field: what the user knows the file by (`--problems`), for the error of a file that cannot be read.
        parse_number: makes a value of a number's spelling, NaN and Infinity included; default: as `json` does.

    Raises:
        UserInputError: a file that cannot be read, or a line that is not one JSON object.
    """
    for number, line in read_lines(path, field):
        where = f"{path}:{number}"
        values = parse_line(line, where, parse_number=parse_number)
        if not isinstance(values, dict):
            raise UserInputError(where, line.decode().strip()[:60], "one JSON object a line")
        yield JsonRow(number, where, values)


def format_line(values: object) -> str:
    """One line of JSON with its line end; readable, save that a text with half a character is escaped."""
    line = json.dumps(values, ensure_ascii=False)
    try:
        line.encode("utf-8")
    except UnicodeEncodeError:
        line = json.dumps(values)
    return line + "\n"


def check_other_file(source: Path, target: Path, field: str) -> None:
    """Refuses to write over the file that is read.

    Args:
        source: the file that is read.
        target: the file that would be written.
        field: what the user knows `target` by.

    Raises:
        UserInputError: both are one file.
    """
    if source.exists() and target.exists() and source.samefile(target):
        raise UserInputError(field, str(target), "another file than the one that is read")


def read_lines(path: Path, field: str) -> Iterator[tuple[int, bytes]]:
    """(number from 1, bytes) of each line that holds something, without a byte order mark.

    Raises:
        UserInputError: a file that cannot be read.
    """
    try:
        with path.open("rb") as file:  # a binary file is split at b"\n" and nowhere else
            for number, line in enumerate(file, start=1):
                text = line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line
                if text.strip():
                    yield number, text
    except OSError as error:
        raise UserInputError(field, str(path), f"a file that can be read ({error.strerror})") from error


def parse_line(line: bytes, where: str, *, parse_number: Callable[[str], Any] | None = None) -> Any:
    """The JSON value of a line.

    Args:
        line: UTF-8.
        where: its place, for the error.
        parse_number: as in `read_rows`.

    Raises:
        UserInputError: not UTF-8, not JSON, or JSON nested too deeply to be read.
    """
    try:
        return json.loads(
            line.decode("utf-8"), parse_int=parse_number, parse_float=parse_number, parse_constant=parse_number
        )
    except UnicodeDecodeError as error:
        problem = f"byte {error.start} is not UTF-8"
    except json.JSONDecodeError as error:
        problem = f"{error.msg} at column {error.colno}"
    except RecursionError:
        problem = "nested too deeply"
    except ValueError as error:  # Python refuses integers of more than 4300 digits
        problem = str(error)
    shown = line[:60].decode("utf-8", "replace").strip()
    raise UserInputError(where, shown, f"one JSON object a line ({problem})")
