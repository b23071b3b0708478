"""A finished rollout: its ledger, its tool calls and how it ended; to and from protobuf and JSON lines.

Token ids and log-probabilities pass through both forms unchanged. (The wire holds float32; engines compute
log-probabilities in float32, so nothing is lost.)
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rstar_model.ledger import LedgerError, Span, TokenLedger
from rstar_model.types import EndReason, SpanKind, ToolStatus
from rstar_protos.errors import UserInputError
from rstar_protos.jsonl import read_rows
from rstar_protos.rollout.v1 import rollout_pb2

__all__ = [
    "Segment",
    "ToolCallRecord",
    "Trajectory",
    "from_json_dict",
    "read_trajectories",
    "to_json_dict",
    "trajectory_from_proto",
    "trajectory_to_proto",
    "write_trajectories",
]


@dataclass(frozen=True)
class ToolCallRecord:
    """One tool call and what came of it; ``response`` is the text that the policy was shown."""

    turn: int
    name: str
    arguments_json: str
    status: ToolStatus
    response: str
    wall_seconds: float = 0.0
    queue_seconds: float = 0.0
    truncated: bool = False


@dataclass(frozen=True)
class Segment:
    """Decoded text of one span, special tokens visible."""

    kind: SpanKind
    text: str
    turn: int = 0


@dataclass(frozen=True)
class Trajectory:
    """One rollout of one problem. ``turns`` counts assistant turns, the first included."""

    trajectory_id: str
    problem_id: str
    group_id: str
    sample_index: int
    ledger: TokenLedger
    tool_calls: tuple[ToolCallRecord, ...]
    end_reason: EndReason
    turns: int
    answer_tags: int
    wall_seconds: float = 0.0
    seed: int = 0
    segments: tuple[Segment, ...] = field(default=())
    error: str = ""
    engine: str = ""

    @property
    def failed_tool_calls(self) -> int:
        """Calls whose typed status is a failure."""
        return sum(call.status.is_failure for call in self.tool_calls)

    @property
    def policy_tokens(self) -> int:
        """Tokens that the policy generated."""
        return self.ledger.policy_length

    @property
    def response_tokens(self) -> int:
        """Tokens after the prompt: policy, tool and separators."""
        return self.ledger.response_length

    @property
    def policy_text(self) -> str:
        """All text that the policy wrote, turn after turn, without tool responses and pre-filled tags."""
        return "".join(segment.text for segment in self.segments if segment.kind is SpanKind.POLICY)

    @property
    def final_turn_text(self) -> str:
        """What the policy wrote in its last turn; a declared answer can only be here."""
        last = self.turns - 1
        return "".join(
            segment.text for segment in self.segments if segment.kind is SpanKind.POLICY and segment.turn == last
        )


def trajectory_to_proto(trajectory: Trajectory) -> rollout_pb2.Trajectory:
    """The wire form.

    Raises:
        LedgerError: the ledger is a demonstration, which no engine generated.
    """
    if trajectory.ledger.demonstration:
        raise LedgerError("a demonstration is not a rollout: it has no engine log-probabilities")
    return rollout_pb2.Trajectory(
        trajectory_id=trajectory.trajectory_id,
        problem_id=trajectory.problem_id,
        group_id=trajectory.group_id,
        sample_index=trajectory.sample_index,
        spans=[
            rollout_pb2.Span(
                kind=span.kind.to_proto(),
                token_ids=span.token_ids,
                log_probs=span.log_probs or (),
                weight_version=span.weight_version or 0,
                turn=span.turn,
            )
            for span in trajectory.ledger.spans
        ],
        tool_calls=[
            rollout_pb2.ToolCall(
                turn=call.turn,
                name=call.name,
                arguments_json=call.arguments_json,
                status=call.status.to_proto(),
                response=call.response,
                wall_seconds=call.wall_seconds,
                queue_seconds=call.queue_seconds,
                truncated=call.truncated,
            )
            for call in trajectory.tool_calls
        ],
        end_reason=trajectory.end_reason.to_proto(),
        turns=trajectory.turns,
        answer_tags=trajectory.answer_tags,
        wall_seconds=trajectory.wall_seconds,
        seed=trajectory.seed,
        segments=[
            rollout_pb2.Segment(kind=segment.kind.to_proto(), text=segment.text, turn=segment.turn)
            for segment in trajectory.segments
        ],
        error=trajectory.error,
        engine=trajectory.engine,
    )


def trajectory_from_proto(message: rollout_pb2.Trajectory) -> Trajectory:
    """The rollout of a wire message.

    Raises:
        LedgerError: lengths or kinds of the spans disagree.
        ValueError: an enum is unset.
    """
    ledger = TokenLedger()
    for span in message.spans:
        kind = SpanKind.from_proto(span.kind)
        generated = kind is SpanKind.POLICY
        if not generated and span.log_probs:
            raise LedgerError(f"a {kind.value} span came with log-probabilities")
        ledger.append(
            kind,
            span.token_ids,
            log_probs=span.log_probs if generated else None,
            weight_version=span.weight_version if generated else None,
            turn=span.turn,
        )
    return Trajectory(
        trajectory_id=message.trajectory_id,
        problem_id=message.problem_id,
        group_id=message.group_id,
        sample_index=message.sample_index,
        ledger=ledger,
        tool_calls=tuple(
            ToolCallRecord(
                turn=call.turn,
                name=call.name,
                arguments_json=call.arguments_json,
                status=ToolStatus.from_proto(call.status),
                response=call.response,
                wall_seconds=call.wall_seconds,
                queue_seconds=call.queue_seconds,
                truncated=call.truncated,
            )
            for call in message.tool_calls
        ),
        end_reason=EndReason.from_proto(message.end_reason),
        turns=message.turns,
        answer_tags=message.answer_tags,
        wall_seconds=message.wall_seconds,
        seed=message.seed,
        segments=tuple(
            Segment(SpanKind.from_proto(segment.kind), segment.text, segment.turn) for segment in message.segments
        ),
        error=message.error,
        engine=message.engine,
    )


def to_json_dict(trajectory: Trajectory) -> dict[str, Any]:
    """A dictionary of plain JSON values, one line of a trajectory file."""
    record = {name: getattr(trajectory, name) for name in _PLAIN_FIELDS}
    record["end_reason"] = trajectory.end_reason.value
    record["demonstration"] = trajectory.ledger.demonstration
    record["spans"] = [_span_to_dict(span) for span in trajectory.ledger.spans]
    record["tool_calls"] = [{**asdict(call), "status": call.status.value} for call in trajectory.tool_calls]
    record["segments"] = [
        {"kind": segment.kind.value, "text": segment.text, "turn": segment.turn} for segment in trajectory.segments
    ]
    return record


_PLAIN_FIELDS = (
    "trajectory_id",
    "problem_id",
    "group_id",
    "sample_index",
    "turns",
    "answer_tags",
    "wall_seconds",
    "seed",
    "error",
    "engine",
)


def _span_to_dict(span: Span) -> dict[str, Any]:
    record: dict[str, Any] = {
        "kind": span.kind.value,
        "turn": span.turn,
        "token_ids": list(span.token_ids),
    }
    if span.log_probs is not None:
        record["log_probs"] = list(span.log_probs)
        record["weight_version"] = span.weight_version
    return record


def from_json_dict(record: Mapping[str, Any]) -> Trajectory:
    """The rollout of one line of a trajectory file.

    Raises:
        UserInputError: a field is missing, has the wrong type or breaks an invariant of the ledger.
    """
    try:
        ledger = TokenLedger(demonstration=bool(record.get("demonstration", False)))
        for span in record["spans"]:
            ledger.append(
                SpanKind(span["kind"]),
                span["token_ids"],
                log_probs=span.get("log_probs"),
                weight_version=span.get("weight_version"),
                turn=span.get("turn", 0),
            )
        return Trajectory(
            **{name: record[name] for name in _PLAIN_FIELDS},
            ledger=ledger,
            tool_calls=tuple(
                ToolCallRecord(**{**call, "status": ToolStatus(call["status"])}) for call in record["tool_calls"]
            ),
            end_reason=EndReason(record["end_reason"]),
            segments=tuple(
                Segment(SpanKind(segment["kind"]), segment["text"], segment.get("turn", 0))
                for segment in record["segments"]
            ),
        )
    except KeyError as error:
        raise UserInputError("trajectory", f"no field {error}", "a line written by to_json_dict") from error
    except (TypeError, ValueError, AttributeError, LedgerError) as error:
        raise UserInputError("trajectory", str(error), "a line written by to_json_dict") from error


def write_trajectories(path: Path, trajectories: Iterable[Trajectory], *, append: bool = False) -> None:
    """Write JSON lines, each flushed as it is written."""
    with path.open("a" if append else "w", encoding="utf-8") as file:
        for trajectory in trajectories:
            file.write(json.dumps(to_json_dict(trajectory), ensure_ascii=False) + "\n")
            file.flush()


def read_trajectories(path: Path) -> Iterator[Trajectory]:
    """Read JSON lines one by one.

    Raises:
        UserInputError: the file is missing or a line is not a trajectory; line numbers start at 1.
    """
    for row in read_rows(path, "trajectories"):
        try:
            yield from_json_dict(row.values)
        except UserInputError as error:
            raise UserInputError.message(f"{row.where}: {error}") from error
