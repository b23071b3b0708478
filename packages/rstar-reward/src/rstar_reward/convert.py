"""Between verdicts and the messages of the reward contract."""

from __future__ import annotations

from typing import Any

from rstar_protos.reward.v1 import reward_pb2
from rstar_reward.verdict import Verdict, VerdictStatus

__all__ = ["verdict_from_proto", "verdict_to_proto"]

_TO_PROTO: dict[VerdictStatus, Any] = {
    status: reward_pb2.VerdictStatus.Value(f"VERDICT_STATUS_{status.name}") for status in VerdictStatus
}
_FROM_PROTO = {number: status for status, number in _TO_PROTO.items()}


def verdict_to_proto(request_id: str, verdict: Verdict, wall_seconds: float) -> reward_pb2.ScoreResponse:
    """The response message of a verdict; the reward is absent where the rollout is excluded."""
    response = reward_pb2.ScoreResponse(
        request_id=request_id,
        status=_TO_PROTO[verdict.status],
        reason=verdict.reason,
        wall_seconds=wall_seconds,
    )
    if verdict.reward is not None:
        response.reward = verdict.reward
    if verdict.extracted is not None:
        response.extracted = verdict.extracted
    return response


def verdict_from_proto(response: reward_pb2.ScoreResponse) -> Verdict:
    """The verdict in a response message; a status of a newer contract is unscorable."""
    status = _FROM_PROTO.get(response.status, VerdictStatus.UNSCORABLE)
    return Verdict(status, response.reason, response.extracted if response.HasField("extracted") else None)
