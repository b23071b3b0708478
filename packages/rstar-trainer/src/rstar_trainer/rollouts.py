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
from rstar_protos.errors import ServiceUnavailableError
from rstar_rollout.client import RolloutClient
from rstar_rollout.continuation import StopRule
from rstar_rollout.engines.base import EngineNotReadyError, WeightUpdateError
from rstar_rollout.limits import ProblemRequest, RolloutLimits, SamplingSettings, ToolSettings
from rstar_trainer.services import Services
from rstar_trainer.weight_delivery import WeightDelivery

__all__ = ["RolloutSource", "requests_for"]

_ATTEMPTS = 6
_RETRY_SECONDS = 0.5
_PASSING = (ServiceUnavailableError, EngineNotReadyError, WeightUpdateError)

_Sample = tuple[str, int]


class RolloutSource:
    """The rollout service as the trainer sees it.

    Args:
        services: of the run.
        delivery: brings weights to its engines.
        sleeping: whether engines sleep while the learner computes.
    """

    def __init__(self, services: Services, delivery: WeightDelivery, *, sleeping: bool = False) -> None:
        self._services, self._delivery, self._sleeping = services, delivery, sleeping
        self._client = RolloutClient(services.channel("rollout"))
        self._version: int | None = None
        self._checksum = ""
        self._sent: tuple[int, int] | None = None
        self._asleep: int | None = None

    @property
    def version(self) -> int | None:
        """Of the weights that engines are to use; None: those that they began with."""
        return self._version

    async def use_weights(self, version: int) -> str:
        """Makes the engines use the learner's weights now, and after every restart; returns their checksum.

        Args:
            version: of the learner's parameters.
        """
        self._version = version
        failures = 0
        while True:
            try:
                await self._ensure_weights()
                return self._checksum
            except _PASSING as error:
                # Engines may lack what was sent to those that they replace.
                self._sent = None
                failures += 1
                await self._wait(failures, str(error))

    async def rest(self) -> None:
        """The learner is about to compute: where the recipe says so, engines give it their memory until they are used.

        Engines that are away are no matter: they hold no memory.

        Raises:
            ServiceUnavailableError: they refused over several attempts.
        """
        generation = self._services.rollout_generation
        if not self._sleeping or self._asleep == generation:
            return
        failures = 0
        self._asleep = generation  # some may sleep even where others failed: all are woken before they are used
        while True:
            try:
                await self._client.sleep()
                return
            except ServiceUnavailableError:
                return
            except EngineNotReadyError as error:  # rollouts that were given up are still being ended
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
            expected_weight_version: of the engines; 0: the one last given to `use_weights`.
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
                version = expected_weight_version or self._version or 0
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
        """Sends the weights unless this very process of the service has them already, and wakes its engines.

        Sleeping engines are sent the weights first and woken afterwards, so that what the update needs and what
        generation needs are not wanted at the same time. Weights are not relied on to survive a sleep.
        """
        if self._version is None:
            return
        wanted, asleep = (self._services.rollout_generation, self._version), self._asleep is not None
        if self._sent != wanted or asleep:
            self._checksum = await self._delivery.deliver(self._version, wanted[0])
        if asleep:
            await self._client.wake()
            self._asleep = None
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
