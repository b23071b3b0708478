"""From a request to a verdict: end reason, extraction, quick judgement, worker, and whose fault a failure was.

One `Judge` serves the service and, through a background loop, the `verify` function, so that threads, asyncio code
and remote callers get the same verdict.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from rstar_protos.errors import InfrastructureError
from rstar_reward.transcript import EndKind, SegmentLike, Transcript, end_kind
from rstar_reward.verdict import Verdict, VerdictStatus
from rstar_reward.verifiers import Judgement, load_verifier
from rstar_reward.workers import Reply, ReplyKind, WorkerPool

__all__ = ["Judge", "PendingComparison", "Response", "prepare"]

Response = str | Iterable[SegmentLike | Mapping[str, object]]

# Longer answers are not repeated often, and would make the cache large.
_MAX_CACHED_LENGTH = 500
_REMEMBERED_GOLDS = 100_000


@dataclass(frozen=True)
class PendingComparison:
    """What only a worker can decide."""

    verifier: str
    gold: str
    candidate: str


def prepare(
    gold: str, response: Response, end_reason: object = None, verifier: str = "math"
) -> Verdict | PendingComparison:
    """Everything that needs no worker, in time linear in the response.

    Raises:
        UserInputError: unknown verifier, end reason or segment kind.
    """
    judge = load_verifier(verifier)
    end, name = end_kind(end_reason)
    if end is EndKind.INFRASTRUCTURE:
        return Verdict(VerdictStatus.UNSCORABLE, "the rollout was ended by the infrastructure")
    if end is EndKind.UNFINISHED:
        return Verdict(VerdictStatus.NO_ANSWER, f"unfinished rollout: {name}")
    declared = judge.extract(Transcript.of(response))
    if declared.text is None:
        return Verdict(VerdictStatus.NO_ANSWER, declared.reason)
    quick = judge.quick(gold, declared)
    if quick is not None:
        return Verdict(quick.status, quick.reason, declared.text)
    return PendingComparison(verifier or "math", gold, declared.text)


class Judge:
    """Judges with the help of a worker pool.

    Args:
        pool: a started pool of the same event loop.
        cache_size: how many comparisons are remembered; policies repeat their answers. 0: none.
    """

    def __init__(self, pool: WorkerPool, cache_size: int = 100_000) -> None:
        self._pool = pool
        self._cache_size = cache_size
        self._cache: OrderedDict[PendingComparison, Judgement] = OrderedDict()
        self._in_flight: dict[PendingComparison, asyncio.Future[Judgement]] = {}
        # What is known about reference answers: "" when they can be used, else why not.
        self._golds: OrderedDict[tuple[str, str], str] = OrderedDict()

    async def judge(self, gold: str, response: Response, end_reason: object = None, verifier: str = "math") -> Verdict:
        """The verdict.

        Raises:
            UserInputError: unknown verifier, end reason or segment kind.
        """
        prepared = prepare(gold, response, end_reason, verifier)
        return prepared if isinstance(prepared, Verdict) else await self.finish(prepared)

    async def finish(self, pending: PendingComparison) -> Verdict:
        """Decides in a worker what `prepare` left open; equal comparisons in flight share one job."""
        known = self._cache.get(pending)
        if known is not None:
            self._cache.move_to_end(pending)
        elif pending in self._in_flight:
            known = await asyncio.shield(self._in_flight[pending])
        else:
            future = asyncio.ensure_future(self._compare(pending))
            self._in_flight[pending] = future
            future.add_done_callback(lambda done: self._settle(pending, done))
            # Shielded: a caller that goes away must not spoil it for the others.
            known = await asyncio.shield(future)
        return Verdict(known.status, known.reason, pending.candidate)

    async def check_gold(self, gold: str, verifier: str = "math") -> str | None:
        """Why a reference answer cannot be used, None when it can.

        Raises:
            UserInputError: unknown verifier.
            InfrastructureError: no worker could check it.
        """
        load_verifier(verifier)
        name = verifier or "math"
        known = self._golds.get((name, gold))
        if known is not None:
            return known or None
        reply = await self._run_twice(name, gold, None)
        if reply.gold_problem is None:
            raise InfrastructureError(
                f"a reference answer could not be checked: the worker was {reply.kind.value} twice"
            )
        return reply.gold_problem or None

    def _settle(self, pending: PendingComparison, done: asyncio.Future[Judgement]) -> None:
        self._in_flight.pop(pending, None)
        if done.cancelled() or done.exception() is not None:
            return
        judgement = done.result()
        # What a loaded machine caused may come out otherwise the next time.
        repeatable = judgement.status not in (VerdictStatus.UNSCORABLE, VerdictStatus.TIMEOUT)
        if self._cache_size and repeatable and len(pending.candidate) <= _MAX_CACHED_LENGTH:
            self._cache[pending] = judgement
            if len(self._cache) > self._cache_size:
                self._cache.popitem(last=False)

    async def _compare(self, pending: PendingComparison) -> Judgement:
        problem = self._golds.get((pending.verifier, pending.gold))
        if problem:
            return Judgement(VerdictStatus.BAD_GOLD, problem)
        try:
            reply = await self._run_twice(pending.verifier, pending.gold, pending.candidate)
        except InfrastructureError as error:
            return Judgement(VerdictStatus.UNSCORABLE, str(error))
        if reply.kind is ReplyKind.DONE:
            return Judgement(VerdictStatus(reply.body["status"]), reply.body["reason"])
        if reply.kind is ReplyKind.LOST:
            return Judgement(VerdictStatus.UNSCORABLE, "the worker was lost twice")
        if reply.kind is ReplyKind.STARVED:
            return Judgement(VerdictStatus.UNSCORABLE, "the machine is too busy to compare the answer")
        if reply.gold_problem:
            return Judgement(VerdictStatus.BAD_GOLD, reply.gold_problem)
        return _fault_of_response(reply)

    async def _run_twice(self, verifier: str, gold: str, candidate: str | None) -> Reply:
        """Runs a job, and once more in another worker when the first one died or got no CPU.

        The worker checks a reference answer that is new before it compares, so that each is checked once and it is
        known whose fault a failure was. The reply tells what is known about it; None when nothing could be found out.
        """
        reply = await self._run(verifier, gold, candidate)
        if reply.kind in (ReplyKind.LOST, ReplyKind.FAULT):
            reply = await self._run(verifier, gold, candidate, proven=True)
        if reply.kind is ReplyKind.STARVED:
            reply = await self._run(verifier, gold, candidate, self._pool.settings.busy_patience)
        if reply.gold_problem is None and reply.kind not in (ReplyKind.LOST, ReplyKind.STARVED):
            problem = f"checking it ended in: {reply.kind.value}"
            self._remember(verifier, gold, problem)
            return Reply(reply.kind, reply.body, problem)
        return reply

    async def _run(
        self, verifier: str, gold: str, candidate: str | None, patience: float = 1.0, *, proven: bool = False
    ) -> Reply:
        known = self._golds.get((verifier, gold))
        job = {"verifier": verifier, "gold": gold, "candidate": candidate, "check_gold": known is None}
        reply = await self._pool.run(job, patience, proven=proven)
        if known is not None:
            return Reply(reply.kind, reply.body, known)
        if reply.gold_problem is not None:
            self._remember(verifier, gold, reply.gold_problem)
        return reply

    def _remember(self, verifier: str, gold: str, problem: str) -> None:
        self._golds[verifier, gold] = problem
        if len(self._golds) > _REMEMBERED_GOLDS:
            self._golds.popitem(last=False)


def _fault_of_response(reply: Reply) -> Judgement:
    """The reference answer alone passes, so the response caused it: reward 0, or failures could be hidden."""
    if reply.kind is ReplyKind.TIMEOUT:
        return Judgement(VerdictStatus.TIMEOUT, "comparing took longer than the deadline")
    if reply.kind is ReplyKind.MEMORY:
        return Judgement(VerdictStatus.TOO_COMPLEX, "comparing exceeded the memory limit")
    if reply.kind is ReplyKind.RECURSION:
        return Judgement(VerdictStatus.TOO_COMPLEX, "the answer is nested too deeply")
    if reply.kind is ReplyKind.FAULT:
        return Judgement(VerdictStatus.TOO_COMPLEX, "comparing crashed two workers, the reference alone does not")
    return Judgement(VerdictStatus.WRONG, f"cannot be compared: {reply.body.get('reason', '')}")
