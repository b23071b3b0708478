"""`verify`: a verdict for any caller, from any thread.

The symbolic part runs in worker processes of a pool that a background event loop owns; it is started when the first
answer needs it and ends with the process. A process that was forked later starts its own.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import Future

from rstar_protos.errors import InfrastructureError, ServiceUnavailableError
from rstar_reward.judge import Judge, PendingComparison, Response, prepare
from rstar_reward.verdict import Verdict, VerdictStatus
from rstar_reward.workers import WorkerPool

__all__ = ["check_golds", "verify", "verify_many"]


def verify(gold: str, response: Response, *, end_reason: object = None, verifier: str = "math") -> Verdict:
    """Judges the declared answer of a response.

    Args:
        gold: the reference answer.
        response: the plain text of a response, or the segments of a rollout, of which only policy text is read.
        end_reason: how the rollout ended ("answered", "truncated", ...); None counts as finished.
        verifier: the kind of answer: "math", "exact", or one that a plug-in registers.

    Returns:
        The verdict; `reward` is None where the rollout belongs in no group. It takes at most a few seconds.

    Raises:
        UserInputError: unknown verifier, end reason or segment kind.
    """
    prepared = prepare(gold, response, end_reason, verifier)
    if isinstance(prepared, Verdict):
        return prepared
    return _result(_submit(prepared))


def verify_many(
    pairs: Iterable[tuple[str, Response]], *, end_reason: object = None, verifier: str = "math"
) -> list[Verdict]:
    """Judges many (gold, response) pairs at once, on all workers; verdicts in the order of the pairs.

    Raises:
        UserInputError: as `verify`.
    """
    prepared = [prepare(gold, response, end_reason, verifier) for gold, response in pairs]
    waiting: Sequence[Verdict | Future[Verdict]] = [
        item if isinstance(item, Verdict) else _submit(item) for item in prepared
    ]
    return [_result(item) for item in waiting]


def check_golds(golds: Iterable[str], verifier: str = "math") -> dict[int, str]:
    """Index -> reason of every reference answer that cannot be used; to be called when a data set is loaded.

    Raises:
        UserInputError: unknown verifier.
        InfrastructureError: they could not be checked.
    """
    waiting = [_background().check(gold, verifier) for gold in golds]
    reasons = [item.result() for item in waiting]
    return {index: reason for index, reason in enumerate(reasons) if reason}


def _submit(pending: PendingComparison) -> Verdict | Future[Verdict]:
    try:
        return _background().submit(pending)
    except InfrastructureError as error:
        return Verdict(VerdictStatus.UNSCORABLE, str(error), pending.candidate)


def _result(future: Verdict | Future[Verdict]) -> Verdict:
    if isinstance(future, Verdict):
        return future
    try:
        return future.result()
    except InfrastructureError as error:
        return Verdict(VerdictStatus.UNSCORABLE, str(error))


class _Background:
    """An event loop in a daemon thread, with a judge in it."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._started: Future[Judge] = Future()
        self._pool: WorkerPool | None = None
        self._thread = threading.Thread(target=self._run, name="rstar-reward-verify", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def submit(self, pending: PendingComparison) -> Future[Verdict]:
        """Schedules a comparison.

        Raises:
            InfrastructureError: the workers cannot be started.
        """
        judge = self._started.result()
        return asyncio.run_coroutine_threadsafe(judge.finish(pending), self._loop)

    def check(self, gold: str, verifier: str) -> Future[str | None]:
        """Schedules the check of a reference answer.

        Raises:
            InfrastructureError: the workers cannot be started.
        """
        return asyncio.run_coroutine_threadsafe(self._started.result().check_gold(gold, verifier), self._loop)

    @property
    def failed(self) -> bool:
        """True when the workers could not be started."""
        return self._started.done() and self._started.exception() is not None

    def close(self) -> None:
        """Ends the workers."""
        if self.pid != os.getpid() or self._pool is None or not self._loop.is_running():
            return
        with contextlib.suppress(Exception):  # the interpreter is ending; the kernel ends the workers in any case
            asyncio.run_coroutine_threadsafe(self._pool.close(), self._loop).result(5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.create_task(self._start())
        self._loop.run_forever()

    async def _start(self) -> None:
        self._pool = WorkerPool()
        try:
            await self._pool.start()
        except Exception as error:
            self._started.set_exception(ServiceUnavailableError(f"the workers cannot be started: {error}"))
        else:
            self._started.set_result(Judge(self._pool))


_lock = threading.Lock()
_current: _Background | None = None


def _background() -> _Background:
    global _current
    with _lock:
        # After a fork the loop's thread exists in the parent only.
        if _current is None or _current.pid != os.getpid() or _current.failed:
            _current = _Background()
        return _current


def _forget_after_fork() -> None:
    global _lock, _current
    _lock, _current = threading.Lock(), None


os.register_at_fork(after_in_child=_forget_after_fork)
