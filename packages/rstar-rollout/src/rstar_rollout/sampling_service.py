"""SamplingService: Resample-on-Correct behind gRPC. Needs no model and no torch."""

from __future__ import annotations

import grpc
import grpc.aio

from rstar_protos.errors import UserInputError
from rstar_protos.sampling.v1 import sampling_pb2, sampling_pb2_grpc
from rstar_rollout.roc import DEFAULT_EPSILON, Decision, Reason, Resampled, ScoredRollout, resample_on_correct

__all__ = ["SamplingServicer", "resampled_from_proto", "scored_to_proto"]


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
            )
        except UserInputError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        return sampling_pb2.ResampleGroupResponse(
            group_id=request.group_id,
            kept_ids=outcome.kept_ids,
            decisions=[_decision_to_proto(decision) for decision in outcome.decisions],
            rejected=outcome.rejected,
        )


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
    )
