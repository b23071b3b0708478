"""Partial rollouts: where a rollout that was stopped goes on, and when a request stops those that still run.

A rollout may be stopped anywhere: within a turn, while its calls run, between turns, or before its first token. What
it has is in its trajectory, and that alone is enough to go on: nothing of it stays in an engine or a service. A turn
that goes on after a weight update has one policy span for each version that wrote it, with the log-probabilities that
tokens had when they were drawn.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rstar_model.ledger import Span, TokenLedger
from rstar_model.trajectory import ToolCallRecord, Trajectory
from rstar_model.types import EndReason, SpanKind, ToolStatus
from rstar_protos.errors import UserInputError

__all__ = ["Continuation", "StopRule", "check_partial", "count_repeat"]


@dataclass(frozen=True)
class Continuation:
    """Where a stopped rollout goes on.

    Attributes:
        ledger: a copy of what it has.
        records: its tool calls so far.
        turns: turns that are complete.
        open_ids: policy ids of the turn that was cut, or of a complete turn whose calls have no result yet.
        calls_pending: the turn is complete; its calls have to be run.
        repeats: length of the last run of invalid or identical calls.
        last_call: name and arguments of that run; empty for invalid calls.
        seconds: wall time used so far.
    """

    ledger: TokenLedger
    records: tuple[ToolCallRecord, ...] = ()
    turns: int = 0
    open_ids: tuple[int, ...] = ()
    calls_pending: bool = False
    repeats: int = 0
    last_call: tuple[str, str] | None = None
    seconds: float = 0.0

    @classmethod
    def of(
        cls, partial: Trajectory, prompt: Sequence[tuple[SpanKind, Sequence[int]]], stop_ids: frozenset[int]
    ) -> Continuation:
        """Where a rollout goes on.

        Args:
            partial: the stopped rollout.
            prompt: spans that the prompt of its problem has now.
            stop_ids: tokens that end a turn.

        Raises:
            UserInputError: it began with another prompt (another format, other tools or another problem).
        """
        begins = [(kind, tuple(ids)) for kind, ids in prompt if ids]
        spans = partial.ledger.spans
        if [(span.kind, span.token_ids) for span in spans[: len(begins)]] != begins:
            raise UserInputError("partial", partial.trajectory_id, "a rollout that began with this problem's prompt")
        open_ids = _last_turn(spans[len(begins) :])
        pending = bool(open_ids) and open_ids[-1] in stop_ids
        repeats, last_call = _repeated(partial.tool_calls)
        return cls(
            ledger=TokenLedger(spans),
            records=partial.tool_calls,
            turns=partial.turns - bool(open_ids),
            open_ids=open_ids,
            calls_pending=pending,
            repeats=repeats,
            last_call=last_call,
            seconds=partial.wall_seconds,
        )


def check_partial(partial: Trajectory, problem_id: str, group_id: str, indices: range) -> None:
    """Is this a stopped rollout of one of the samples that are asked for?

    Raises:
        UserInputError: it ended by itself, or it is a rollout of something else.
    """
    if partial.end_reason is not EndReason.CANCELLED:
        raise UserInputError(
            "partial", f"{partial.trajectory_id} ended as {partial.end_reason.value}", "a rollout that was cancelled"
        )
    if (partial.problem_id, partial.group_id) != (problem_id, group_id) or partial.sample_index not in indices:
        accepted = f"samples {indices.start} to {indices.stop - 1} of {problem_id} in {group_id}"
        raise UserInputError("partial", f"{partial.trajectory_id} of {partial.problem_id}", accepted)


def count_repeat(
    repeats: int, last: tuple[str, str] | None, record: ToolCallRecord
) -> tuple[int, tuple[str, str] | None]:
    """The run of equal calls after one more: its length and key. Invalid calls are all equal.

    Infrastructure faults neither go on with a run nor end it.

    Args:
        repeats: length of the run so far.
        last: its key; None: no call yet.
        record: the call.
    """
    if record.status is ToolStatus.UNAVAILABLE:
        return repeats, last
    invalid = record.status in (ToolStatus.PARSE_ERROR, ToolStatus.UNKNOWN_TOOL)
    key = ("", "") if invalid else (record.name, record.arguments_json)
    return (repeats + 1 if key == last else 1), key


class StopRule:
    """Counts groups whose rollouts have all ended, and says when the others are stopped.

    Args:
        groups: group of each rollout of the request.
        stop_after: groups that are waited for; 0: all.
        required: groups that are waited for in any case.
    """

    def __init__(self, groups: Iterable[str], stop_after: int, required: Iterable[str] = ()) -> None:
        self._open = Counter(groups)
        self._left = min(stop_after, len(self._open)) if stop_after else len(self._open)
        self._required = set(required) & self._open.keys()

    def ended(self, group: str) -> None:
        """One rollout of a group has ended."""
        self._open[group] -= 1
        if not self._open[group]:
            self._left -= 1
            self._required.discard(group)

    @property
    def left(self) -> int:
        """Groups that are still waited for, 0 or less when those that must finish are all that is left."""
        return self._left

    @property
    def reached(self) -> bool:
        """Enough groups have ended."""
        return self._left <= 0 and not self._required


def _last_turn(spans: Sequence[Span]) -> tuple[int, ...]:
    """Policy ids at the end of the ledger: all spans of the last turn, which several versions may have written."""
    ids: tuple[int, ...] = ()
    for span in reversed(spans):
        if span.kind is not SpanKind.POLICY:
            break
        ids = span.token_ids + ids
    return ids


def _repeated(records: Sequence[ToolCallRecord]) -> tuple[int, tuple[str, str] | None]:
    """Length and key of the run of equal calls that the records end with; see `RolloutState`."""
    repeats, last = 0, None
    for record in records:
        repeats, last = count_repeat(repeats, last, record)
    return repeats, last
