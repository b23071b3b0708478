"""Verdicts on trajectories from a RewardService. This side holds the gold answers; the rollout side never does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import grpc.aio

from rstar_eval.problems import EvalProblem
from rstar_model.trajectory import Trajectory
from rstar_model.types import EndReason
from rstar_protos.errors import InfrastructureError
from rstar_protos.reward.v1 import reward_pb2, reward_pb2_grpc
from rstar_protos.service import call_with_retry

__all__ = ["AnswerScorer", "RewardServiceScorer", "Verdict"]

_NEVER_SCORED = (EndReason.INFRASTRUCTURE, EndReason.CANCELLED)


@dataclass(frozen=True)
class Verdict:
    """What became of one trajectory; `status` and `reward` as in `SampleRecord`."""

    status: str
    reward: float | None
    reason: str = ""
    extracted: str | None = None


class AnswerScorer(Protocol):
    """Anything that judges the declared answer of a finished rollout."""

    async def score(self, problem: EvalProblem, trajectory: Trajectory, *, request_id: str) -> Verdict:
        """Judges one trajectory; a repeated `request_id` is the same request."""
        ...


class RewardServiceScorer:
    """Scores over the RewardService contract.

    Args:
        channel: to the service.
        verifier: its verifier; "" is its default.
        timeout_s: deadline of one call, seconds.
        patience_s: how long an unreachable service is waited for, seconds.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        *,
        verifier: str = "",
        timeout_s: float = 120.0,
        patience_s: float = 60.0,
    ) -> None:
        self._stub = reward_pb2_grpc.RewardServiceStub(channel)
        self._verifier = verifier
        self._timeout_s = timeout_s
        self._patience_s = patience_s

    async def score(self, problem: EvalProblem, trajectory: Trajectory, *, request_id: str) -> Verdict:
        """Judges one trajectory. One that infrastructure ended is excluded without asking the service.

        Raises:
            ServiceUnavailableError: the service did not answer within the patience.
            InfrastructureError: the service broke its contract.
            grpc.aio.AioRpcError: the service refused the call, for example an unknown verifier.
        """
        if trajectory.end_reason in _NEVER_SCORED:
            return Verdict(trajectory.end_reason.value, None, trajectory.error)
        request = reward_pb2.ScoreRequest(
            request_id=request_id,
            gold=problem.answer,
            segments=[
                reward_pb2.Segment(kind=segment.kind.to_proto(), text=segment.text) for segment in trajectory.segments
            ],
            end_reason=trajectory.end_reason.to_proto(),
            verifier=self._verifier,
        )
        response = await call_with_retry(
            self._stub.Score, request, timeout_s=self._timeout_s, patience_s=self._patience_s
        )
        return _verdict(response, request_id)


def _verdict(response: reward_pb2.ScoreResponse, request_id: str) -> Verdict:
    if response.request_id != request_id:
        raise InfrastructureError(f"reward service answered {response.request_id!r} when asked {request_id!r}")
    status = reward_pb2.VerdictStatus.Name(response.status).removeprefix("VERDICT_STATUS_").lower()
    if status == "unspecified":
        raise InfrastructureError(f"reward service left the verdict of {request_id!r} unset")
    return Verdict(
        status,
        response.reward if response.HasField("reward") else None,
        response.reason,
        response.extracted if response.HasField("extracted") else None,
    )
