"""The evaluation itself: rollouts stream in, each is scored at once and written down, then the report is made.

Scoring runs beside generation: a trajectory is judged while others are still being generated. Samples that
infrastructure lost are asked for again, by their own sample index and thus with their own sampling noise.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

import grpc.aio

from rstar_eval.problems import EvalProblem
from rstar_eval.report import Report
from rstar_eval.sample import SampleRecord
from rstar_eval.sample_log import SampleLog
from rstar_eval.scoring import AnswerScorer, RewardServiceScorer
from rstar_eval.settings import EvalSettings
from rstar_model.trajectory import Trajectory
from rstar_protos.errors import InfrastructureError, ServiceUnavailableError, UserInputError
from rstar_rollout.limits import ProblemRequest, RolloutLimits, SamplingSettings, ToolSettings

__all__ = ["TrajectorySource", "evaluate"]

_PROBLEMS_PER_CALL = 1000  # keeps one request far below the message size limit
_SCORING_AT_ONCE = 64
# Between attempts to reach a rollout service that is away, doubling.
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 2.0


class TrajectorySource(Protocol):
    """What is needed of `rstar_rollout.client.RolloutClient`."""

    def generate_groups(
        self,
        problems: Sequence[ProblemRequest],
        sampling: SamplingSettings,
        limits: RolloutLimits,
        tools: ToolSettings,
        expected_weight_version: int = 0,
    ) -> AsyncIterator[Trajectory]:
        """Yields every sample of every problem as it finishes."""
        ...


async def evaluate(
    problems: Sequence[EvalProblem],
    rollout: TrajectorySource,
    reward: AnswerScorer | grpc.aio.Channel,
    settings: EvalSettings,
    on_result: Callable[[SampleRecord], None] | None = None,
    *,
    samples_path: Path | None = None,
    name: str = "",
    policy: str = "",
    expected_weight_version: int = 0,
) -> Report:
    """Evaluates a policy on problems.

    Args:
        problems: with unique ids.
        rollout: client of the RolloutService that holds the policy.
        reward: a scorer, or a channel to a RewardService.
        settings: sampling.
        on_result: called with each new sample, its trajectory attached, in the order they are scored.
        samples_path: JSONL file of samples. Those it already holds are not made again, and the report covers
            all it holds in the end. None: nothing is stored.
        name: title of the report.
        policy: which policy this is; samples of another one in the file are refused.
        expected_weight_version: of the rollout service; 0: any.

    Returns:
        The report; look at `missing` before trusting it.

    Raises:
        UserInputError: no problems, repeated ids, or a file of samples that do not belong here.
        ServiceUnavailableError: a service stayed away; what was scored until then is in the file.
        grpc.aio.AioRpcError: the reward service refused the call for another reason.
    """
    _check(problems)
    scorer = _scorer(reward, settings)
    run_id = uuid.uuid4().hex
    with SampleLog(samples_path) as log:
        log.check_belongs(problems, policy, settings.sampling_key)
        attempt, away_since, pause = 0, None, _FIRST_PAUSE_SECONDS
        while attempt <= settings.retries and (wanted := list(_wanted(problems, settings.samples, log))):
            sink = _Sink(problems, scorer, settings, policy, log, on_result, f"{run_id}-{attempt}")
            try:
                for start in range(0, len(wanted), _PROBLEMS_PER_CALL):
                    stream = rollout.generate_groups(
                        wanted[start : start + _PROBLEMS_PER_CALL],
                        settings.sampling(),
                        settings.limits(),
                        settings.tools(),
                        expected_weight_version,
                    )
                    await sink.consume(stream)
                attempt += 1
            except _StreamLostError as lost:
                now = time.monotonic()
                if away_since is None or sink.received:
                    away_since, pause = now, _FIRST_PAUSE_SECONDS
                elif now - away_since > settings.outage_patience_seconds:
                    raise ServiceUnavailableError(f"no rollouts for {now - away_since:.0f} s: {lost}") from lost
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        return Report.of(log.samples, settings, problems=problems, name=name, policy=policy)


class _StreamLostError(Exception):
    """The rollout service went away in mid-stream, as opposed to the reward service, which has its own patience."""


async def _marked(stream: AsyncIterator[Trajectory]) -> AsyncIterator[Trajectory]:
    try:
        async for trajectory in stream:
            yield trajectory
    except ServiceUnavailableError as error:
        raise _StreamLostError(str(error)) from error


class _Sink:
    """Scores a stream of trajectories and writes the samples down, a bounded number at once."""

    def __init__(
        self,
        problems: Iterable[EvalProblem],
        scorer: AnswerScorer,
        settings: EvalSettings,
        policy: str,
        log: SampleLog,
        on_result: Callable[[SampleRecord], None] | None,
        request_prefix: str,
    ) -> None:
        self._problems = {problem.problem_id: problem for problem in problems}
        self._scorer = scorer
        self._settings = settings
        self._policy = policy
        self._log = log
        self._on_result = on_result
        self._prefix = request_prefix
        self._seen: set[tuple[str, int]] = set()

    @property
    def received(self) -> int:
        """Trajectories that came."""
        return len(self._seen)

    async def consume(self, stream: AsyncIterator[Trajectory]) -> None:
        """Reads the stream to its end. Whatever ends it early, trajectories that came are scored and kept."""
        scoring: set[asyncio.Task[None]] = set()
        try:
            async for trajectory in _marked(stream):
                if not self._is_new(trajectory):
                    continue
                scoring.add(asyncio.ensure_future(self._score(trajectory)))
                if len(scoring) >= _SCORING_AT_ONCE:
                    await asyncio.wait(scoring, return_when=asyncio.FIRST_COMPLETED)
                done = {task for task in scoring if task.done()}
                scoring -= done
                _raise_first(done)
        except asyncio.CancelledError:
            for task in scoring:
                task.cancel()
            raise
        finally:
            if scoring:
                await asyncio.wait(scoring)
            if isinstance(stream, AsyncGenerator):
                await stream.aclose()  # a failure here must not leave the service generating
        _raise_first(scoring)

    def _is_new(self, trajectory: Trajectory) -> bool:
        key = (trajectory.problem_id, trajectory.sample_index)
        if trajectory.problem_id not in self._problems:
            raise InfrastructureError(f"the rollout service sent problem {key[0]!r}, which was not asked for")
        if key in self._seen:
            return False  # a stream that was begun again after a lost connection
        self._seen.add(key)
        return True

    async def _score(self, trajectory: Trajectory) -> None:
        problem = self._problems[trajectory.problem_id]
        request_id = f"{self._prefix}/{problem.problem_id}/{trajectory.sample_index}"
        verdict = await self._scorer.score(problem, trajectory, request_id=request_id)
        record = SampleRecord.of(
            problem, trajectory, verdict, policy=self._policy, settings=self._settings.sampling_key
        )
        self._log.append(record)
        if self._on_result is not None:
            self._on_result(record)


def _wanted(problems: Iterable[EvalProblem], samples: int, log: SampleLog) -> Iterable[ProblemRequest]:
    """The missing samples as requests: one per run of consecutive sample indices of a problem."""
    for problem in problems:
        first = None
        for index in range(samples + 1):
            record = log.get((problem.problem_id, index)) if index < samples else None
            missing = index < samples and (record is None or record.lost)
            if missing and first is None:
                first = index
            elif not missing and first is not None:
                yield ProblemRequest(
                    problem_id=problem.problem_id,
                    # Consecutive runs of one problem are groups of their own within the request.
                    group_id=f"eval/{problem.problem_id}/{first}",
                    prompt=problem.problem,
                    samples=index - first,
                    first_sample_index=first,
                )
                first = None


def _scorer(reward: AnswerScorer | grpc.aio.Channel, settings: EvalSettings) -> AnswerScorer:
    if isinstance(reward, grpc.aio.Channel):
        return RewardServiceScorer(reward, verifier=settings.verifier, timeout_s=settings.score_timeout_seconds)
    return reward


def _check(problems: Sequence[EvalProblem]) -> None:
    if not problems:
        raise UserInputError("problems", 0, "at least one problem")
    seen: set[str] = set()
    for problem in problems:
        if problem.problem_id in seen:
            raise UserInputError("problem_id", problem.problem_id, "an id of its own for every problem")
        seen.add(problem.problem_id)


def _raise_first(tasks: Iterable[asyncio.Task[None]]) -> None:
    for task in tasks:
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error
