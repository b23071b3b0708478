"""SamplingService: Resample-on-Correct behind gRPC. Needs no model and no torch."""

from __future__ import annotations

import grpc
import grpc.aio

from rstar_protos.errors import UserInputError
from rstar_protos.sampling.v1 import sampling_pb2, sampling_pb2_grpc
from rstar_rollout.roc import (
    DEFAULT_EPSILON,
    DEFAULT_MINIMUM,
    Decision,
    Mode,
    Reason,
    RejectReason,
    Resampled,
    ScoredRollout,
    resample_on_correct,
)
from rstar_rollout.roc_groups import GroupSelection, SelectionOutcome, select_groups

__all__ = ["SamplingServicer", "mode_to_proto", "resampled_from_proto", "scored_to_proto", "selection_from_proto"]


class SamplingServicer(sampling_pb2_grpc.SamplingServiceServicer):
    """Stateless: the same request always gives the same response."""

    async def ResampleGroup(
        self,
        request: sampling_pb2.ResampleGroupRequest,
        context: grpc.aio.ServicerContext[object, object],
    ) -> sampling_pb2.ResampleGroupResponse:
        """Choose the rollouts of one group."""
        try:
            outcome = resample_on_correct(
                [_scored_from_proto(rollout) for rollout in request.rollouts],
                request.keep,
                seed=request.seed,
                group_id=request.group_id,
                epsilon=request.epsilon if request.HasField("epsilon") else DEFAULT_EPSILON,
                enabled=request.enabled,
                mode=_mode_from_proto(request.mode),
                minimum_positives=request.min_positives if request.HasField("min_positives") else DEFAULT_MINIMUM,
                minimum_negatives=request.min_negatives if request.HasField("min_negatives") else DEFAULT_MINIMUM,
            )
        except UserInputError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return sampling_pb2.ResampleGroupResponse(
            group_id=request.group_id,
            kept_ids=outcome.kept_ids,
            decisions=[_decision_to_proto(decision) for decision in outcome.decisions],
            rejected=outcome.rejected,
            reject_reason=f"REJECT_REASON_{outcome.reject_reason.name}" if outcome.reject_reason else None,
            positives=outcome.positives,
            negatives=outcome.negatives,
            unscorable=outcome.unscorable,
        )

    async def SelectGroups(
        self,
        request: sampling_pb2.SelectGroupsRequest,
        context: grpc.aio.ServicerContext[object, object],
    ) -> sampling_pb2.SelectGroupsResponse:
        """Choose among the groups of one step."""
        groups = {group.group_id: group.rejected for group in request.groups}
        try:
            if len(groups) != len(request.groups):
                raise UserInputError("groups", f"{len(request.groups) - len(groups)} ids twice", "ids that appear once")
            selection = select_groups(groups, request.wanted, rounds_done=request.round, max_rounds=request.max_rounds)
        except UserInputError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return sampling_pb2.SelectGroupsResponse(
            outcome=f"OUTCOME_{selection.outcome.name}",
            accepted_ids=selection.accepted_ids,
            rejected_ids=selection.rejected_ids,
            refill=selection.refill,
        )


def mode_to_proto(mode: Mode) -> str:
    """Name of a mode in the contract."""
    return f"MODE_{mode.name}"


def _mode_from_proto(number: int) -> Mode:
    """Mode of a wire number; unspecified is the paper's.

    Raises:
        UserInputError: a number that this service does not know.
    """
    modes = {
        sampling_pb2.ResampleGroupRequest.MODE_UNSPECIFIED: Mode.PAPER,
        sampling_pb2.ResampleGroupRequest.MODE_PAPER: Mode.PAPER,
        sampling_pb2.ResampleGroupRequest.MODE_RELEASE: Mode.RELEASE,
    }
    for known, mode in modes.items():
        if number == known:
            return mode
    raise UserInputError("mode", number, "MODE_PAPER or MODE_RELEASE")


def scored_to_proto(rollout: ScoredRollout) -> sampling_pb2.ScoredRollout:
    """The wire form of a scored rollout."""
    return sampling_pb2.ScoredRollout(
        trajectory_id=rollout.trajectory_id,
        reward=rollout.reward,
        tool_calls=rollout.tool_calls,
        failed_tool_calls=rollout.failed_tool_calls,
        answer_tags=rollout.answer_tags,
        turns=rollout.turns,
    )


def _scored_from_proto(message: sampling_pb2.ScoredRollout) -> ScoredRollout:
    return ScoredRollout(
        trajectory_id=message.trajectory_id,
        reward=message.reward if message.HasField("reward") else None,
        tool_calls=message.tool_calls,
        failed_tool_calls=message.failed_tool_calls,
        answer_tags=message.answer_tags,
        turns=message.turns,
    )


def _decision_to_proto(decision: Decision) -> sampling_pb2.Decision:
    return sampling_pb2.Decision(
        trajectory_id=decision.trajectory_id,
        kept=decision.kept,
        reason=f"REASON_{decision.reason.name}",
        p_err=decision.p_err,
        p_format=decision.p_format,
    )


def resampled_from_proto(message: sampling_pb2.ResampleGroupResponse) -> Resampled:
    """The outcome that a response holds."""
    return Resampled(
        kept_ids=tuple(message.kept_ids),
        decisions=tuple(
            Decision(
                d.trajectory_id,
                d.kept,
                Reason[sampling_pb2.Decision.Reason.Name(d.reason).removeprefix("REASON_")],
                d.p_err,
                d.p_format,
            )
            for d in message.decisions
        ),
        rejected=message.rejected,
        reject_reason=_reject_reason_from_proto(message.reject_reason),
        positives=message.positives,
        negatives=message.negatives,
        unscorable=message.unscorable,
    )


def _reject_reason_from_proto(number: int) -> RejectReason | None:
    reasons = sampling_pb2.ResampleGroupResponse.RejectReason
    if number == sampling_pb2.ResampleGroupResponse.REJECT_REASON_UNSPECIFIED:
        return None
    return RejectReason[reasons.Name(number).removeprefix("REJECT_REASON_")]


def selection_from_proto(message: sampling_pb2.SelectGroupsResponse) -> GroupSelection:
    """The selection that a response holds."""
    name = sampling_pb2.SelectGroupsResponse.Outcome.Name(message.outcome)
    return GroupSelection(
        SelectionOutcome[name.removeprefix("OUTCOME_")],
        tuple(message.accepted_ids),
        tuple(message.rejected_ids),
        message.refill,
    )
