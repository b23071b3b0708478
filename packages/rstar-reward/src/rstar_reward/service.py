"""RewardService: an asyncio front that never imports SymPy; what may hang happens in worker processes."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections import OrderedDict
from collections.abc import AsyncIterator
from typing import Any

import grpc
import grpc.aio

from rstar_protos.errors import InfrastructureError, UserInputError
from rstar_protos.reward.v1 import reward_pb2, reward_pb2_grpc
from rstar_reward import metrics
from rstar_reward.convert import verdict_to_proto
from rstar_reward.judge import Judge, Response
from rstar_reward.verdict import Verdict, VerdictStatus
from rstar_reward.verifiers import load_verifier
from rstar_reward.workers import WorkerPool

__all__ = ["RewardServicer"]

_Context = grpc.aio.ServicerContext[Any, Any]

_MAX_IN_FLIGHT_PER_STREAM = 256
_MAX_GOLDS = 100_000
_REMEMBERED = 10_000


class RewardServicer(reward_pb2_grpc.RewardServiceServicer):
    """Serves verdicts.

    Args:
        pool: a started pool of the same event loop.
        cache_size: how many comparisons are remembered; 0: none.
    """

    def __init__(self, pool: WorkerPool, cache_size: int = 100_000) -> None:
        self._pool = pool
        self._judge = Judge(pool, cache_size)
        self._answered: OrderedDict[str, tuple[bytes, reward_pb2.ScoreResponse]] = OrderedDict()

    async def Score(self, request: reward_pb2.ScoreRequest, context: _Context) -> reward_pb2.ScoreResponse:
        """One verdict. INVALID_ARGUMENT: unknown verifier, or both segments and response."""
        try:
            return await self._score(request)
        except UserInputError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise AssertionError("abort does not return") from error

    async def ScoreMany(
        self, request_iterator: AsyncIterator[reward_pb2.ScoreRequest], context: _Context
    ) -> AsyncIterator[reward_pb2.ScoreResponse]:
        """Verdicts as they are reached, keyed by request_id.

        A request that cannot be read is answered as unscorable with the reason, so that it does not take the others of
        its stream along.
        """
        results: asyncio.Queue[reward_pb2.ScoreResponse | None] = asyncio.Queue()
        places = asyncio.Semaphore(_MAX_IN_FLIGHT_PER_STREAM)
        tasks: set[asyncio.Task[None]] = set()

        async def answer(request: reward_pb2.ScoreRequest) -> None:
            try:
                results.put_nowait(await self._score(request))
            except UserInputError as error:
                refusal = Verdict(VerdictStatus.UNSCORABLE, f"refused request: {error}")
                results.put_nowait(verdict_to_proto(request.request_id, refusal, 0.0))
            finally:
                places.release()

        async def read() -> None:
            try:
                async for request in request_iterator:
                    await places.acquire()
                    task = asyncio.ensure_future(answer(request))
                    tasks.add(task)
                    task.add_done_callback(tasks.discard)
                await asyncio.gather(*tasks)
            finally:
                results.put_nowait(None)

        reader = asyncio.ensure_future(read())
        try:
            while (response := await results.get()) is not None:
                yield response
            await reader
        finally:
            reader.cancel()
            for task in list(tasks):
                task.cancel()

    async def CheckGold(self, request: reward_pb2.CheckGoldRequest, context: _Context) -> reward_pb2.CheckGoldResponse:
        """Which reference answers cannot be used, and why."""
        if len(request.golds) > _MAX_GOLDS:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"golds: at most {_MAX_GOLDS} in one request")
        try:
            load_verifier(request.verifier)
            reasons = await asyncio.gather(*(self._judge.check_gold(gold, request.verifier) for gold in request.golds))
        except UserInputError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except InfrastructureError as error:
            await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
        problems = [
            reward_pb2.CheckGoldResponse.Problem(index=index, reason=reason)
            for index, reason in enumerate(reasons)
            if reason
        ]
        return reward_pb2.CheckGoldResponse(bad=problems)

    async def _score(self, request: reward_pb2.ScoreRequest) -> reward_pb2.ScoreResponse:
        known = self._answered.get(request.request_id) if request.request_id else None
        fingerprint = _fingerprint(request) if request.request_id else b""
        if known is not None and known[0] == fingerprint:
            return known[1]
        start = time.perf_counter()
        verdict = await self._judge.judge(
            request.gold, _response_of(request), int(request.end_reason), request.verifier
        )
        seconds = time.perf_counter() - start
        metrics.VERDICTS_TOTAL.labels(request.verifier or "math", verdict.status.value).inc()
        metrics.VERDICT_SECONDS.observe(seconds)
        metrics.WORKERS.set(len(self._pool.worker_pids))
        metrics.WORKERS_REPLACED.set(self._pool.replaced)
        response = verdict_to_proto(request.request_id, verdict, seconds)
        # A retry of the same request gets the same verdict; one that failed for our reasons is tried anew.
        if request.request_id and verdict.status is not VerdictStatus.UNSCORABLE:
            self._answered[request.request_id] = (fingerprint, response)
            if len(self._answered) > _REMEMBERED:
                self._answered.popitem(last=False)
        return response


def _fingerprint(request: reward_pb2.ScoreRequest) -> bytes:
    """Tells a retry from another request that was given the same id."""
    return hashlib.sha256(request.SerializeToString(deterministic=True)).digest()


def _response_of(request: reward_pb2.ScoreRequest) -> Response:
    if request.segments and request.response:
        raise UserInputError("segments", "...", "segments or response, not both")
    return request.segments if request.segments else request.response
