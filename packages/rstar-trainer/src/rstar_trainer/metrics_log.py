"""The numbers of a run: one JSON object per line in `metrics.jsonl`, and TensorBoard events beside it.

Every record is flushed at once, and a record cut by a crash is dropped on opening. On a resume the
records after the checkpoint are removed, so that no step is there twice. The trainer service
streams from here.
"""

import asyncio
import json
import math
import os
import threading
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

__all__ = ["METRICS_FILE", "TENSORBOARD_FOLDER", "MetricsLog", "Record", "RecordKind", "read_records"]

METRICS_FILE = "metrics.jsonl"
TENSORBOARD_FOLDER = "tensorboard"

RecordKind = Literal["sft", "rl", "evaluation", "event"]


@dataclass(frozen=True)
class Record:
    """One line of the log.

    Attributes:
        global_step: steps done in the whole run, SFT and all stages, never decreasing.
        stage: "sft", the name of an RL stage, or for evaluations the entry of the report.
        kind: what the values are about; "event" carries text only.
        values: numbers by name; what is not finite is null in the file.
        text: events only.
        time: seconds since 1970.
    """

    global_step: int
    stage: str
    kind: RecordKind
    values: Mapping[str, float] = field(default_factory=dict)
    text: str = ""
    time: float = 0.0

    def to_json(self) -> str:
        """The record as one line of JSON, without the line end."""
        values = {name: value if math.isfinite(value) else None for name, value in self.values.items()}
        record: dict[str, Any] = {"global_step": self.global_step, "stage": self.stage, "kind": self.kind}
        if values:
            record["values"] = values
        if self.text:
            record["text"] = self.text
        return json.dumps({**record, "time": round(self.time, 3)}, ensure_ascii=False)

    @classmethod
    def from_json(cls, line: str) -> Self:
        """The inverse of `to_json`; null is read as NaN."""
        record = json.loads(line)
        values = {name: math.nan if v is None else float(v) for name, v in record.get("values", {}).items()}
        return cls(
            global_step=int(record["global_step"]),
            stage=record["stage"],
            kind=record["kind"],
            values=values,
            text=record.get("text", ""),
            time=record.get("time", 0.0),
        )


def read_records(run_dir: Path) -> list[Record]:
    """All whole records of a run, in order; none when there is no log yet."""
    try:
        content = (run_dir / METRICS_FILE).read_bytes()
    except FileNotFoundError:
        return []
    # What follows the last line end was cut by a crash.
    whole = content[: content.rfind(b"\n") + 1]
    return [Record.from_json(line.decode()) for line in whole.split(b"\n") if line]


class MetricsLog:
    """Appends records to a run's log and hands them to subscribers. Safe to call from several threads.

    Args:
        run_dir: the run folder; created when missing.
        tensorboard: also write TensorBoard events.
    """

    def __init__(self, run_dir: Path, *, tensorboard: bool = True) -> None:
        self._run_dir = run_dir
        self._path = run_dir / METRICS_FILE
        run_dir.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._records = read_records(run_dir)
        self._subscribers: list[tuple[asyncio.AbstractEventLoop, asyncio.Queue[Record | None]]] = []
        self._tensorboard = tensorboard
        self._purge_step: int | None = None
        self._writer: Any = None
        self._closed = False
        self._rewrite()
        self._file = self._path.open("a", encoding="utf-8")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def position(self) -> int:
        """Records written so far. A checkpoint stores it for `truncate`."""
        return len(self._records)

    @property
    def records(self) -> tuple[Record, ...]:
        """The records so far, in order."""
        with self._lock:
            return tuple(self._records)

    def truncate(self, global_step: int, position: int | None = None) -> None:
        """Removes what was logged after a checkpoint: records of later steps, and those from `position` on.

        For a run that goes on from the checkpoint, in this process or in another.
        """
        with self._lock:
            kept = self._records if position is None else self._records[:position]
            self._records = [record for record in kept if record.global_step <= global_step]
            self._file.close()
            self._rewrite()
            self._file = self._path.open("a", encoding="utf-8")
            # TensorBoard cannot cut its files: readers are told to disregard steps from here on.
            self._purge_step = global_step + 1
            if self._writer is not None:
                self._writer.close()
                self._writer = None

    def log(
        self,
        kind: RecordKind,
        *,
        global_step: int,
        stage: str,
        values: Mapping[str, float] | None = None,
        text: str = "",
    ) -> Record:
        """Appends one record, flushed before this returns."""
        numbers = {name: float(value) for name, value in (values or {}).items()}
        record = Record(global_step, stage, kind, numbers, text, time.time())
        with self._lock:
            self._file.write(record.to_json() + "\n")
            self._file.flush()
            self._records.append(record)
            self._write_events(record)
            for loop, queue in self._subscribers:
                _hand_over(loop, queue, record)
        return record

    async def stream(self, from_global_step: int = 0, *, follow: bool = False) -> AsyncIterator[Record]:
        """Records from a step on; with `follow` also those to come, until the log is closed."""
        subscriber = (asyncio.get_running_loop(), asyncio.Queue[Record | None]())
        with self._lock:
            past = [record for record in self._records if record.global_step >= from_global_step]
            follow = follow and not self._closed
            if follow:
                self._subscribers.append(subscriber)
        try:
            for record in past:
                yield record
            while follow:
                new = await subscriber[1].get()
                if new is None:
                    return
                if new.global_step >= from_global_step:
                    yield new
        finally:
            with self._lock:
                if subscriber in self._subscribers:
                    self._subscribers.remove(subscriber)

    def close(self) -> None:
        """Ends all streams and closes the files. Calling it again does nothing."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for loop, queue in self._subscribers:
                _hand_over(loop, queue, None)
            self._file.close()
            if self._writer is not None:
                self._writer.close()

    def _rewrite(self) -> None:
        """Makes the file hold exactly the records, replacing it in one piece."""
        content = "".join(record.to_json() + "\n" for record in self._records).encode()
        if self._path.exists() and self._path.read_bytes() == content:
            return
        temporary = self._path.with_suffix(".partial")
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path)

    def _write_events(self, record: Record) -> None:
        if not self._tensorboard:
            return
        if self._writer is None:
            # Brings torch along, which a reader of the log does not need.
            from torch.utils.tensorboard import SummaryWriter

            folder = str(self._run_dir / TENSORBOARD_FOLDER)
            self._writer = SummaryWriter(folder, purge_step=self._purge_step)
        for name, value in record.values.items():
            tag = f"{record.kind}/{name}"
            self._writer.add_scalar(tag, value, record.global_step, walltime=record.time)
        if record.text:
            self._writer.add_text(record.kind, record.text, record.global_step, walltime=record.time)
        self._writer.flush()


def _hand_over(loop: asyncio.AbstractEventLoop, queue: "asyncio.Queue[Record | None]", record: Record | None) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(queue.put_nowait, record)
