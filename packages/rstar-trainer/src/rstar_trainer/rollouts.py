"""Rollouts that arrive whatever dies on the way: lost samples are asked for again, each is delivered once.

Used by training and evaluation alike. The weights that an engine must have are part of the question: after a restart
they are sent again before anything is generated.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby

from rstar_model.trajectory import Trajectory
from rstar_model.types import EndReason
from rstar_model.weights import WeightManifest
from rstar_protos.errors import ServiceUnavailableError
from rstar_rollout.client import RolloutClient
from rstar_rollout.continuation import StopRule
from rstar_rollout.engines.base import EngineNotReadyError, WeightUpdateError
from rstar_rollout.limits import ProblemRequest, RolloutLimits, SamplingSettings, ToolSettings
from rstar_trainer.services import Services

__all__ = ["RolloutSource", "requests_for"]

_ATTEMPTS = 6
_RETRY_SECONDS = 0.5
_PASSING = (ServiceUnavailableError, EngineNotReadyError, WeightUpdateError)

_Sample = tuple[str, int]


class RolloutSource:
    """The rollout service as the trainer sees it.

    Args:
        services: of the run.
    """

    def __init__(self, services: Services) -> None:
        self._services = services
        self._client = RolloutClient(services.channel("rollout"))
        self._manifest: WeightManifest | None = None
        self._sent: tuple[int, int] | None = None

    async def use_weights(self, manifest: WeightManifest) -> None:
        """Makes the engines use these weights now, and after every restart."""
        self._manifest = manifest
        failures = 0
        while True:
            try:
                return await self._ensure_weights()
            except _PASSING as error:
                failures += 1
                await self._wait(failures, str(error))

    async def generate_groups(
        self,
        problems: Sequence[ProblemRequest],
        sampling: SamplingSettings,
        limits: RolloutLimits,
        tools: ToolSettings,
        expected_weight_version: int = 0,
        stop_after_groups: int = 0,
    ) -> AsyncIterator[Trajectory]:
        """Yields every sample of every problem exactly once, as they finish.

        With `stop_after_groups`, those that were stopped come as CANCELLED with what they have; if the service goes
        away while it sends them, the rest of them does not come.

        Args:
            problems: each with the number of samples and the index of the first.
            sampling: temperature, seed.
            limits: turns and tokens.
            tools: whether tools may be called, and their limits.
            expected_weight_version: of the engines; 0: that of the weights last given to `use_weights`.
            stop_after_groups: when the rollouts of so many groups have ended, the others are stopped; 0: never.

        Raises:
            ServiceUnavailableError: the service stayed away over several attempts.
        """
        missing = dict.fromkeys(_samples(problems))
        rule = StopRule(
            (group for group, _ in missing), stop_after_groups, (p.group for p in problems if p.must_finish)
        )
        failures = 0
        while missing and not rule.reached:
            try:
                await self._ensure_weights()
                version = expected_weight_version or (self._manifest.version if self._manifest else 0)
                stream = self._client.generate_groups(
                    _still_missing(problems, missing),
                    sampling,
                    limits,
                    tools,
                    expected_weight_version=version,
                    stop_after_groups=max(1, rule.left) if stop_after_groups else 0,
                )
                async for trajectory in stream:
                    key = (trajectory.group_id, trajectory.sample_index)
                    if key in missing:
                        del missing[key]
                        failures = 0
                        if trajectory.end_reason is not EndReason.CANCELLED:
                            rule.ended(trajectory.group_id)
                        yield trajectory
                reason = "its stream ended early"
            except _PASSING as error:
                reason = str(error)
                # A service that runs elsewhere may have been restarted without a word; its weights are sent again.
                self._sent = None
            if not missing or rule.reached:
                return
            failures += 1
            await self._wait(failures, reason)

    async def _ensure_weights(self) -> None:
        """Sends the weights unless this very process of the service has them already."""
        if self._manifest is None:
            return
        wanted = (self._services.rollout_generation, self._manifest.version)
        if self._sent != wanted:
            await self._client.update_weights(self._manifest)
            self._sent = wanted

    @staticmethod
    async def _wait(failures: int, reason: str) -> None:
        """Pauses after a failure, longer each time without progress.

        Raises:
            ServiceUnavailableError: too many failures in a row.
        """
        if failures >= _ATTEMPTS:
            raise ServiceUnavailableError(f"the rollout service failed {failures} times in a row: {reason}")
        if failures:
            await asyncio.sleep(_RETRY_SECONDS * 2**failures)


def _samples(problems: Iterable[ProblemRequest]) -> Iterator[_Sample]:
    for problem in problems:
        for index in problem.sample_indices:
            yield problem.group_id, index


def _still_missing(problems: Sequence[ProblemRequest], missing: Collection[_Sample]) -> list[ProblemRequest]:
    """The missing samples as requests."""
    return [
        request
        for problem in problems
        for request in requests_for(
            problem, [index for group, index in _samples([problem]) if (group, index) in missing]
        )
    ]


def requests_for(problem: ProblemRequest, indices: Iterable[int]) -> list[ProblemRequest]:
    """Some samples of a problem, in ascending order: one request per run of consecutive indices."""
    requests = []
    for _, run in groupby(enumerate(indices), key=lambda pair: pair[1] - pair[0]):
        members = [index for _, index in run]
        partial = tuple(p for p in problem.partial if p.sample_index in members)
        requests.append(replace(problem, samples=len(members), first_sample_index=members[0], partial=partial))
    return requests
