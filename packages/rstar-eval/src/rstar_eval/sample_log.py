"""The file every sample is written to the moment it is scored, so that no crash loses finished work.

One JSON line per sample, appended and flushed. Opening it again reads what is there: an evaluation asks only for
the samples that are missing and reports the union. A line cut short by a crash is dropped; any other damage is an
error. Where a sample was made twice (lost to infrastructure, then made again) the later line counts.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from rstar_eval.problems import EvalProblem
from rstar_eval.sample import SampleRecord
from rstar_protos.errors import UserInputError

__all__ = ["SampleLog", "read_samples"]


class SampleLog:
    """Samples by key, in memory and, when a path is given, in a file. A context manager; holds the file's lock.

    Args:
        path: the JSONL file, made when absent; None keeps the samples in memory only.

    Raises:
        UserInputError: for a damaged file, or one that another evaluation is writing.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._samples: dict[tuple[str, int], SampleRecord] = {}
        self._file = None
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab")
        try:
            self._lock()
            records, intact = _read(path)
            self._file.truncate(intact)
        except BaseException:
            self._file.close()
            raise
        self._samples = {record.key: record for record in records}

    def _lock(self) -> None:
        assert self._file is not None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserInputError.message(f"{self.path} is being written by another evaluation") from None

    def __enter__(self) -> SampleLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Gives the file and its lock back."""
        if self._file is not None:
            self._file.close()

    @property
    def samples(self) -> list[SampleRecord]:
        """All samples, one per key, in the order first seen."""
        return list(self._samples.values())

    def get(self, key: tuple[str, int]) -> SampleRecord | None:
        """The sample of a problem id and sample index, or None."""
        return self._samples.get(key)

    def append(self, record: SampleRecord) -> None:
        """Adds one sample and hands it to the operating system before returning."""
        if self._file is not None:
            line = json.dumps(record.to_json_dict(), ensure_ascii=False, allow_nan=False)
            self._file.write(line.encode("utf-8") + b"\n")
            self._file.flush()
        # Token ledgers of a whole evaluation would fill the memory.
        self._samples[record.key] = replace(record, trajectory=None)

    def check_belongs(self, problems: Iterable[EvalProblem], policy: str, sampling: dict[str, Any]) -> None:
        """Refuses to pool these samples with ones of another policy, sampling or problem text.

        Raises:
            UserInputError: naming the first difference.
        """
        prints = {problem.problem_id: problem.fingerprint for problem in problems}
        for record in self._samples.values():
            if record.policy != policy:
                raise self._foreign("policy", record.policy, policy)
            for name in sorted(sampling.keys() | record.settings.keys()):
                if record.settings.get(name) != sampling.get(name):
                    raise self._foreign(name, record.settings.get(name), sampling.get(name))
            if prints.get(record.problem_id, record.fingerprint) != record.fingerprint:
                raise self._foreign(f"problem {record.problem_id}", "another text or answer", "this one")

    def _foreign(self, name: str, stored: Any, asked: Any) -> UserInputError:
        return UserInputError.message(
            f"{self.path}: holds samples of {name} {stored!r}, not {asked!r}; use another folder for them"
        )


def read_samples(path: Path) -> list[SampleRecord]:
    """Reads the samples of a file, the later line where a sample was made twice.

    Raises:
        UserInputError: for a missing file, or naming the line and field of a damaged one.
    """
    if not path.is_file():
        raise UserInputError("samples", str(path), "a samples.jsonl written by an evaluation")
    return list({record.key: record for record in _read(path)[0]}.values())


def _read(path: Path) -> tuple[list[SampleRecord], int]:
    """The records, and the length in bytes of the intact part of the file."""
    records: list[SampleRecord] = []
    intact = 0
    with path.open("rb") as lines:
        for number, raw in enumerate(lines, start=1):
            if not raw.endswith(b"\n"):
                break  # the writer was killed within this line
            if raw.strip():
                records.append(_record(raw, f"{path}, line {number}"))
            intact += len(raw)
    return records, intact


def _record(raw: bytes, where: str) -> SampleRecord:
    try:
        values = json.loads(raw)
        if not isinstance(values, dict):
            raise UserInputError("line", type(values).__name__, "one JSON object")
        return SampleRecord.from_json_dict(values)
    except (ValueError, RecursionError) as error:
        raise UserInputError.message(f"{where}: not a line of an evaluation ({error})") from None
    except UserInputError as error:
        raise UserInputError.message(f"{where}, field {error.field}: {error}") from None
