"""RewardClient: verdicts from a reward service, for asyncio callers.

Requests carry ids, so that a service that was restarted in between is simply asked again.
"""

from __future__ import annotations

import asyncio
import itertools
import uuid
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, cast

import grpc
import grpc.aio

from rstar_protos.errors import ServiceUnavailableError, UserInputError
from rstar_protos.reward.v1 import reward_pb2, reward_pb2_grpc
from rstar_protos.service import ClientSecurity, call_with_retry, open_channel
from rstar_reward.convert import verdict_from_proto
from rstar_reward.judge import Response
from rstar_reward.transcript import end_number, read_segments
from rstar_reward.verdict import Verdict

__all__ = ["RewardClient", "ScoreJob"]

_GOLDS_PER_CALL = 2000


@dataclass(frozen=True)
class ScoreJob:
    """One answer to judge in `RewardClient.score_many`."""

    job_id: str
    gold: str
    response: Response
    end_reason: object = None
    verifier: str = "math"


class RewardClient:
    """Asks a reward service.

    Args:
        channel: an open channel (`rstar_protos.service.open_channel`) or an endpoint such as `grpc://host:port`.
        security: for an endpoint with TLS or a token.
        timeout_seconds: deadline of one attempt.
        patience_seconds: how long to go on trying while the service is away.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel | str,
        security: ClientSecurity | None = None,
        *,
        timeout_seconds: float = 60.0,
        patience_seconds: float = 60.0,
    ) -> None:
        self._channel = open_channel(channel, security) if isinstance(channel, str) else channel
        self._owned = isinstance(channel, str)
        self._stub = reward_pb2_grpc.RewardServiceStub(self._channel)
        self._timeout, self._patience = timeout_seconds, patience_seconds

    async def __aenter__(self) -> RewardClient:
        """The client itself."""
        return self

    async def __aexit__(self, *error: object) -> None:
        """Closes the channel if this client opened it."""
        await self.close()

    async def close(self) -> None:
        """Closes the channel if this client opened it."""
        if self._owned:
            await self._channel.close()

    async def score(
        self, gold: str, response: Response, *, end_reason: object = None, verifier: str = "math"
    ) -> Verdict:
        """One verdict.

        Raises:
            UserInputError: the service refused the request.
            ServiceUnavailableError: it did not answer within the patience.
        """
        request = _request(ScoreJob(uuid.uuid4().hex, gold, response, end_reason, verifier))
        try:
            answer = await call_with_retry(
                self._stub.Score, request, timeout_s=self._timeout, patience_s=self._patience
            )
        except grpc.aio.AioRpcError as error:
            raise _translated(error) from error
        return verdict_from_proto(answer)

    async def score_many(self, jobs: Iterable[ScoreJob]) -> AsyncIterator[tuple[str, Verdict]]:
        """Verdicts as they are reached, as (job_id, verdict); each job is answered exactly once.

        When the stream breaks, the jobs without a verdict are sent again.

        Raises:
            UserInputError: two jobs have one id, or a job cannot be sent.
            ServiceUnavailableError: the service did not come back within the patience.
        """
        prefix = uuid.uuid4().hex
        waiting: dict[str, reward_pb2.ScoreRequest] = {}
        for job in jobs:
            request = _request(job)
            request.request_id = f"{prefix}/{job.job_id}"
            if request.request_id in waiting:
                raise UserInputError("job_id", job.job_id, "an id of its own for every job")
            waiting[request.request_id] = request
        clock = asyncio.get_running_loop().time
        give_up, delay = clock() + self._patience, 0.05
        while waiting:
            try:
                async for answer in self._stub.ScoreMany(_stream(list(waiting.values()))):
                    if waiting.pop(answer.request_id, None) is not None:
                        yield answer.request_id[len(prefix) + 1 :], verdict_from_proto(answer)
                    give_up, delay = clock() + self._patience, 0.05
                if waiting and clock() > give_up:
                    raise ServiceUnavailableError(f"{len(waiting)} requests were not answered")
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE or clock() + delay > give_up:
                    raise _translated(error) from error
            if waiting:
                await asyncio.sleep(delay)
                delay = min(delay * 2, 1.0)

    async def check_golds(self, golds: Sequence[str], verifier: str = "math") -> Mapping[int, str]:
        """Index -> reason of every reference answer that cannot be used.

        Raises:
            UserInputError: unknown verifier.
            ServiceUnavailableError: the service did not answer within the patience.
        """
        bad: dict[int, str] = {}
        for start in range(0, len(golds), _GOLDS_PER_CALL):
            part = list(itertools.islice(golds, start, start + _GOLDS_PER_CALL))
            request = reward_pb2.CheckGoldRequest(golds=part, verifier=verifier)
            try:
                answer = await call_with_retry(self._stub.CheckGold, request, patience_s=self._patience)
            except grpc.aio.AioRpcError as error:
                raise _translated(error) from error
            bad.update((start + problem.index, problem.reason) for problem in answer.bad)
        return bad


def _request(job: ScoreJob) -> reward_pb2.ScoreRequest:
    reason = job.end_reason.value if isinstance(job.end_reason, Enum) else job.end_reason
    request = reward_pb2.ScoreRequest(
        request_id=job.job_id, gold=job.gold, end_reason=cast("Any", end_number(reason)), verifier=job.verifier
    )
    if isinstance(job.response, str):
        request.response = job.response
    else:
        for number, text in read_segments(job.response):
            request.segments.add(kind=cast("Any", number), text=text)
    return request


async def _stream(requests: Sequence[reward_pb2.ScoreRequest]) -> AsyncIterator[reward_pb2.ScoreRequest]:
    for request in requests:
        yield request


def _translated(error: grpc.aio.AioRpcError) -> Exception:
    if error.code() is grpc.StatusCode.INVALID_ARGUMENT:
        return UserInputError.message(error.details() or "the reward service refused the request")
    return ServiceUnavailableError(f"reward service: {error.code().name}: {error.details()}")
