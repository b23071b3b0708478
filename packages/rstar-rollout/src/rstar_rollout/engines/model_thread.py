"""The one thread that does all work on a model: rounds or a running batch, and calls in between.

The event loop that serves gRPC hands requests in and never waits for the model.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rstar_rollout.engines.base import (
    EngineDeadError,
    EngineError,
    GenerationRequest,
    GenerationResult,
    TokenCallback,
)

if TYPE_CHECKING:
    from rstar_rollout.engines.continuous_batch import ContinuousBatch

__all__ = ["ModelThread"]


@dataclass
class _Job:
    """Requests that were handed over together, and what they came to."""

    requests: Sequence[GenerationRequest]
    future: Future[list[GenerationResult]]
    results: dict[str, GenerationResult]


class ModelThread:
    """Runs jobs and calls; everything that touches the model happens here.

    Args:
        rounds: jobs run one after another, each as a batch of its own; otherwise they join the running batch.
    """

    def __init__(self, rounds: bool) -> None:
        self._rounds = rounds
        self._wake = threading.Condition()
        self._inbox: deque[_Job] = deque()
        self._calls: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._aborts: set[str] = set()
        self._releases: deque[str] = deque()
        self._jobs: dict[str, _Job] = {}
        self._watchers: dict[str, TokenCallback] = {}
        self._told: dict[str, int] = {}
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="rstar-engine", daemon=True)
        self.batch_or_none: ContinuousBatch | None = None

    @property
    def batch(self) -> ContinuousBatch:
        """The batch; there is one as soon as the weights are loaded."""
        if self.batch_or_none is None:
            raise EngineError("the engine has not been started")
        return self.batch_or_none

    @batch.setter
    def batch(self, value: ContinuousBatch) -> None:
        self.batch_or_none = value

    @property
    def running(self) -> int:
        """Sequences in the batch."""
        return self.batch_or_none.running if self.batch_or_none else 0

    @property
    def waiting(self) -> int:
        """Sequences that have no row yet."""
        queued = sum(len(job.requests) for job in list(self._inbox))
        return queued + (self.batch_or_none.waiting if self.batch_or_none else 0)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread after the step it is in; open jobs fail."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join()

    def submit(self, requests: Sequence[GenerationRequest]) -> Future[list[GenerationResult]]:
        """Queue a job."""
        future: Future[list[GenerationResult]] = Future()
        with self._wake:
            if self._stopping or not self._thread.is_alive():
                raise EngineDeadError("the engine is stopped")
            self._inbox.append(_Job(requests, future, {}))
            self._wake.notify()
        return future

    def abort(self, request_ids: Sequence[str]) -> None:
        """End requests early."""
        with self._wake:
            self._aborts.update(request_ids)
            self._wake.notify()

    def release(self, sequence_id: str) -> None:
        """Forget a sequence between two steps."""
        with self._wake:
            self._releases.append(sequence_id)
            self._wake.notify()

    def watch(self, request_id: str, watcher: TokenCallback | None) -> None:
        """Have a request's ids told as they come, from the model thread; None: no longer."""
        with self._wake:
            if watcher is None:
                self._watchers.pop(request_id, None)
                self._told.pop(request_id, None)
            else:
                self._watchers[request_id], self._told[request_id] = watcher, 0

    async def call(self, function: Callable[[], Any]) -> Any:
        """Run a function in the thread when no sequence is being generated."""
        future: Future[Any] = Future()
        with self._wake:
            if self._stopping:
                raise EngineError("the engine is stopped")
            self._calls.append((function, future))
            self._wake.notify()
        return await asyncio.wrap_future(future)

    def _run(self) -> None:
        while self._prepare():
            batch = self.batch_or_none
            if batch is None or batch.idle:
                continue
            try:
                finished = batch.step()
            except Exception as error:
                self._fail_all(EngineError(f"generation failed: {error!r}"))
                batch.reset()
                continue
            if self._watchers:
                self._tell([*batch.progress(), *((name, result.token_ids) for name, result in finished)])
            for request_id, result in finished:
                self._deliver(request_id, result)
        self._fail_all(EngineError("the engine was stopped"))

    def _prepare(self) -> bool:
        """Wait for something to do and take it over from the other threads; False: stop."""
        with self._wake:
            while not (self._stopping or self._inbox or self._calls or self._releases or self._busy()):
                self._wake.wait()
            if self._stopping:
                return False
            batch = self.batch_or_none
            self._take_aborts()
            while self._releases and batch is not None:
                batch.release(self._releases.popleft())
            self._releases.clear()
            call = self._calls.popleft() if self._calls and not self._busy() else None
            if call is None and batch is not None and not self._calls:
                self._take_jobs(batch)
        if call is not None:
            _run_call(*call)
        return True

    def _busy(self) -> bool:
        return self.batch_or_none is not None and not self.batch_or_none.idle

    def _take_aborts(self) -> None:
        if not self._aborts:
            return
        # A job that is not in the batch yet keeps its abort until it is.
        queued = {request.request_id for job in self._inbox for request in job.requests}
        if self.batch_or_none is not None:
            self.batch_or_none.abort(self._aborts - queued)
        self._aborts &= queued

    def _take_jobs(self, batch: ContinuousBatch) -> None:
        while self._inbox and (batch.idle or not self._rounds):
            if self._rounds:
                batch.forget_prompts()
            job = self._inbox.popleft()
            for request in job.requests:
                self._jobs[request.request_id] = job
            batch.submit(job.requests)
            batch.abort(self._aborts)
            self._aborts -= {request.request_id for request in job.requests}

    def _deliver(self, request_id: str, result: GenerationResult) -> None:
        job = self._jobs.pop(request_id)
        job.results[request_id] = result
        if len(job.results) == len(job.requests):
            _settle(job.future, [job.results[request.request_id] for request in job.requests])

    def _tell(self, progress: Sequence[tuple[str, Sequence[int]]]) -> None:
        """Hand new ids to those who watch; a request's last ids are told before its result is delivered."""
        with self._wake:
            for request_id, ids in progress:
                watcher = self._watchers.get(request_id)
                if watcher is not None and len(ids) > self._told[request_id]:
                    watcher(tuple(ids[self._told[request_id] :]))
                    self._told[request_id] = len(ids)

    def _fail_all(self, error: EngineError) -> None:
        with self._wake:
            jobs = {id(job): job for job in [*self._jobs.values(), *self._inbox]}
            calls = list(self._calls)
            self._jobs.clear()
            self._inbox.clear()
            self._calls.clear()
        for future in [*(job.future for job in jobs.values()), *(future for _, future in calls)]:
            with contextlib.suppress(InvalidStateError):  # already cancelled
                future.set_exception(error)


def _run_call(function: Callable[[], Any], future: Future[Any]) -> None:
    try:
        result = function()
    except Exception as error:
        with contextlib.suppress(InvalidStateError):  # already cancelled
            future.set_exception(error)
    else:
        _settle(future, result)


def _settle(future: Future[Any], result: Any) -> None:
    # The waiting coroutine may have been cancelled meanwhile.
    if future.set_running_or_notify_cancel():
        future.set_result(result)
