"""One rollout between its turns: which request comes next, what a finished turn leads to.

No input or output here: the agent loop asks for the next request, hands in what the engine and the tools answered,
and gets a trajectory in the end. So the rules of a conversation are the same in both of the loop's modes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

from rstar_model.chat_format import ChatFormat
from rstar_model.ledger import Span, TokenLedger
from rstar_model.tokenizer import Tokenizer, valid_text
from rstar_model.tool_calls import MalformedCall, ParsedTurn, ToolCall
from rstar_model.tools import ToolSpec
from rstar_model.trajectory import Segment, ToolCallRecord, Trajectory
from rstar_model.types import EndReason, SpanKind, ToolStatus
from rstar_rollout.continuation import Continuation, count_repeat
from rstar_rollout.engines.base import GenerationRequest, GenerationResult, NoiseKey
from rstar_rollout.limits import RolloutLimits, SamplingSettings, ToolSettings
from rstar_rollout.tool_executor import ToolInvocation, ToolResult

__all__ = ["PlannedCall", "RolloutJob", "RolloutPolicy", "RolloutState"]


@dataclass(frozen=True)
class RolloutJob:
    """One rollout to make."""

    problem_id: str
    group_id: str
    prompt: str
    sample_index: int
    partial: Trajectory | None = None
    """The same rollout as it was when it was stopped."""

    @property
    def group(self) -> str:
        """Id of the group: the problem's own where none was given."""
        return self.group_id or self.problem_id

    @property
    def trajectory_id(self) -> str:
        """Unique within a request: one group is one problem instance."""
        return f"{self.group}/{self.sample_index}"


@dataclass(frozen=True)
class RolloutPolicy:
    """What all rollouts of a request share."""

    chat_format: ChatFormat
    tokenizer: Tokenizer
    specs: tuple[ToolSpec, ...]
    sampling: SamplingSettings
    limits: RolloutLimits
    tools: ToolSettings
    engine: str
    max_model_tokens: int | None = None


@dataclass(frozen=True)
class PlannedCall:
    """A call of a turn: either to be run, or answered already because it is not valid."""

    name: str
    arguments_json: str
    invocation: ToolInvocation | None
    answer: ToolResult | None


class RolloutState:
    """A conversation in progress.

    Args:
        job: which rollout.
        policy: what it shares with the others.
        scope: makes request and call ids unique among all that ever ran against the same services.

    Raises:
        UserInputError: the job goes on with a rollout that began with another prompt.
    """

    def __init__(self, job: RolloutJob, policy: RolloutPolicy, scope: str) -> None:
        self.job = job
        self._policy = policy
        self.sequence_id = f"{scope}/{job.trajectory_id}"
        self._parser = policy.chat_format.parser()
        self._stop_ids = policy.chat_format.stop_ids(policy.tokenizer)
        specs = policy.specs if policy.tools.enabled else ()
        prompt = list(policy.chat_format.prompt_spans(policy.tokenizer, job.prompt, specs))
        # The ledger's own figure starts to count with the first policy token; limits need it before that.
        self._prompt_tokens = sum(len(ids) for _, ids in prompt)
        if job.partial is None:
            before = Continuation(TokenLedger(Span(kind, tuple(ids)) for kind, ids in prompt))
        else:
            before = Continuation.of(job.partial, prompt, self._stop_ids)
        self._ledger = before.ledger
        self._records: list[ToolCallRecord] = list(before.records)
        self._turns = before.turns
        self._open_ids = before.open_ids  # of a turn that goes on
        self._calls_pending = before.calls_pending
        self._started = self._stopped = time.monotonic() - before.seconds
        self._repeats, self._last_call = before.repeats, before.last_call
        self._turn_closed = True
        self._error = ""
        self.end_reason: EndReason | None = None

    @property
    def finished(self) -> bool:
        """No further turn."""
        return self.end_reason is not None

    @property
    def _remaining(self) -> int:
        room = self._policy.limits.remaining(self._prompt_tokens, len(self._ledger) - self._prompt_tokens)
        longest = self._policy.max_model_tokens
        return room if longest is None else min(room, longest - len(self._ledger))

    @property
    def seconds_left(self) -> float | None:
        """Wall time that the rollout may still use, None: as much as it likes."""
        limit = self._policy.limits.max_wall_seconds
        return max(0.0, self._started + limit - time.monotonic()) if limit > 0 else None

    def stop_clock(self) -> None:
        """It waits for an engine from now on, which is not its own time."""
        self._stopped = time.monotonic()

    def start_clock(self) -> None:
        """Its wall time counts again."""
        self._started += time.monotonic() - self._stopped

    def pending_calls(self) -> list[PlannedCall]:
        """Calls of a complete turn whose results were not there when the rollout was stopped; run them first."""
        if not self._calls_pending or self.finished:
            return []
        self._calls_pending = False
        return self._end_turn()

    def next_request(self) -> GenerationRequest | None:
        """The next turn to generate; None when the rollout has ended, perhaps just now for lack of room."""
        if self.finished:
            return None
        sampling = self._policy.sampling
        if self.seconds_left == 0:
            self.expire()
            return None
        budget = self._remaining
        if budget < 1:
            self.end_reason = EndReason.TRUNCATED
            return None
        return GenerationRequest(
            request_id=f"{self.sequence_id}/{self._turns}",
            sequence_id=self.sequence_id,
            token_ids=tuple(self._ledger.token_ids),
            max_new_tokens=budget,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            stop_ids=self._stop_ids,
            noise=NoiseKey(sampling.seed, self.job.problem_id, self.job.sample_index, self._turns, len(self._open_ids)),
            response_tokens=len(self._ledger) - self._prompt_tokens,
        )

    def accept_turn(self, result: GenerationResult) -> list[PlannedCall]:
        """Take over a generated turn; returns the calls in it, empty when the rollout has ended."""
        turn = self._turns
        if result.token_ids:
            self._ledger.append(
                SpanKind.POLICY,
                result.token_ids,
                log_probs=result.log_probs,
                weight_version=result.weight_version,
                turn=turn,
            )
            self._open_ids += result.token_ids
        if self.finished:  # its time was over while the engine was at work
            return []
        if result.finish_reason == "aborted":
            self.end_reason = EndReason.CANCELLED
            return []
        if result.finish_reason == "length":
            # Cut by the limit, perhaps inside a call: nothing of it is run, and there is no room to go on.
            self.end_reason = EndReason.TRUNCATED
            return []
        return self._end_turn()

    def _end_turn(self) -> list[PlannedCall]:
        """The turn is complete; returns the calls in it, empty when the rollout has ended."""
        ids, self._open_ids = self._open_ids, ()
        self._turns += bool(ids)
        end_of_turn = self._policy.chat_format.end_of_turn_id(self._policy.tokenizer)
        self._turn_closed = bool(ids) and ids[-1] == end_of_turn
        parsed = self._parser.parse(self._policy.tokenizer.decode(ids, keep_special=True))
        self.end_reason = self._end_after(parsed)
        if self.end_reason is not None:
            return []
        return [self._plan(call, index) for index, call in enumerate(parsed.calls)]

    def _end_after(self, parsed: ParsedTurn) -> EndReason | None:
        """Why a complete turn is the last one, None if its calls are to be run."""
        if parsed.unclosed:
            return EndReason.UNCLOSED_CALL
        if not parsed.calls or not self._policy.tools.enabled:
            return EndReason.ANSWERED
        return EndReason.TURN_LIMIT if self._turns >= self._policy.limits.max_turns else None

    def _plan(self, call: ToolCall | MalformedCall, index: int) -> PlannedCall:
        if isinstance(call, MalformedCall):
            answer = ToolResult(ToolStatus.PARSE_ERROR, call.message)
            return PlannedCall("", "", None, answer)
        spec = next((spec for spec in self._policy.specs if spec.name == call.name), None)
        if spec is None:
            names = ", ".join(spec.name for spec in self._policy.specs)
            answer = ToolResult(ToolStatus.UNKNOWN_TOOL, f"Unknown tool {call.name!r}; available: {names}")
            return PlannedCall(call.name, call.arguments_json, None, answer)
        wrong = spec.argument_error(call.arguments)
        if wrong is not None:
            answer = ToolResult(ToolStatus.PARSE_ERROR, f"Tool call not valid: {wrong}")
            return PlannedCall(call.name, call.arguments_json, None, answer)
        invocation = ToolInvocation(
            call_id=f"{self.sequence_id}/{self._turns - 1}/{index}",
            name=call.name,
            arguments=call.arguments,
            wall_seconds=_stricter(self._policy.tools.wall_seconds, spec.limits.wall_seconds),
            memory_bytes=_stricter(self._policy.tools.memory_bytes, spec.limits.memory_bytes),
        )
        return PlannedCall(call.name, call.arguments_json, invocation, None)

    def accept_tools(self, calls: Sequence[PlannedCall], results: Sequence[ToolResult]) -> None:
        """Take over the results of a turn's calls, in the order of the calls."""
        turn = self._turns - 1
        own_limits = {spec.name: spec.limits.max_output_tokens for spec in self._policy.specs}
        for call, result in zip(calls, results, strict=True):
            limit = _stricter(self._policy.limits.max_tool_output_tokens, own_limits.get(call.name, 0))
            text = valid_text(result.text)  # a tool may return anything; records travel as UTF-8
            shown, cut = self._policy.chat_format.truncated(self._policy.tokenizer, text, limit)
            self._records.append(
                ToolCallRecord(
                    turn=turn,
                    name=call.name,
                    arguments_json=call.arguments_json,
                    status=result.status,
                    response=shown,
                    wall_seconds=result.wall_seconds,
                    queue_seconds=result.queue_seconds,
                    truncated=cut or result.truncated,
                )
            )
            self._repeats, self._last_call = count_repeat(self._repeats, self._last_call, self._records[-1])
        failed = [result for result in results if result.status is ToolStatus.UNAVAILABLE]
        if failed:
            self.fail(f"tool unavailable: {failed[0].detail}")
            return
        if 0 < self._policy.limits.max_repeated_calls <= self._repeats:
            self.end_reason = EndReason.REPEATED_CALLS
            return
        spans = self._policy.chat_format.tool_turn_spans(
            self._policy.tokenizer,
            [record.response for record in self._records[-len(calls) :]],
            turn_closed=self._turn_closed,
        )
        if sum(len(ids) for _, ids in spans) > self._remaining:
            # A result that does not fit is dropped: prompt and response never exceed the limit.
            self.end_reason = EndReason.TRUNCATED
            return
        for kind, ids in spans:
            self._ledger.append(kind, ids, turn=turn)

    def expire(self) -> None:
        """End the rollout because its time is over; what it has is valid for training."""
        if not self.finished:
            self.end_reason = EndReason.TRUNCATED

    def cancel(self) -> None:
        """End the rollout because its caller wants no more of it."""
        if not self.finished:
            self.end_reason = EndReason.CANCELLED

    def fail(self, error: str) -> None:
        """End the rollout because of the infrastructure."""
        self.end_reason = EndReason.INFRASTRUCTURE
        self._error = error

    def trajectory(self) -> Trajectory:
        """The finished rollout."""
        if self.end_reason is None:
            raise RuntimeError("the rollout has not ended")
        segments = tuple(self._segments())
        written = "".join(segment.text for segment in segments if segment.kind is SpanKind.POLICY)
        return Trajectory(
            trajectory_id=self.job.trajectory_id,
            problem_id=self.job.problem_id,
            group_id=self.job.group,
            sample_index=self.job.sample_index,
            ledger=self._ledger,
            tool_calls=tuple(self._records),
            end_reason=self.end_reason,
            turns=self._turns + bool(self._open_ids),
            answer_tags=self._policy.chat_format.count_answer_tags(written),
            wall_seconds=time.monotonic() - self._started,
            seed=self._policy.sampling.seed,
            segments=segments,
            error=self._error,
            engine=self._policy.engine,
        )

    def _segments(self) -> Iterator[Segment]:
        """The decoded text; a turn is one segment however many spans it has, for a stop may cut a character in two."""
        numbered = enumerate(self._ledger.spans)
        for (kind, turn, _), spans in groupby(numbered, lambda s: (s[1].kind, s[1].turn, _own_segment(*s))):
            ids = [token for _, span in spans for token in span.token_ids]
            yield Segment(kind, self._policy.tokenizer.decode(ids, keep_special=True), turn)


def _own_segment(number: int, span: Span) -> int:
    return -1 if span.kind is SpanKind.POLICY else number


_Number = TypeVar("_Number", int, float)


def _stricter(first: _Number, second: _Number) -> _Number:
    """The smaller of two limits of which 0 is none."""
    return min(first, second) if first > 0 and second > 0 else max(first, second)
