"""The groups of one GRPO-RoC step: rollout -> reward -> resample. `training_sequences` has the advantages.

Trajectories are scored as they stream in, and a group is resampled as soon as its last one is scored. What cannot be
scored (infrastructure) is left out of its group and counted; it is never a reward of 0.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence

import grpc.aio

from rstar_eval.scoring import RewardServiceScorer
from rstar_model.trajectory import Trajectory
from rstar_model.types import EndReason
from rstar_protos.errors import InfrastructureError
from rstar_rollout.client import SamplingClient
from rstar_rollout.limits import ProblemRequest, RolloutLimits, SamplingSettings
from rstar_rollout.limits import ToolSettings as ToolLimits
from rstar_rollout.roc import Resampled, ScoredRollout
from rstar_rollout.roc_groups import GroupSelection
from rstar_trainer.data import TrainProblem
from rstar_trainer.recipe import Stage, ToolSettings
from rstar_trainer.rollouts import RolloutSource, requests_for
from rstar_trainer.scored_group import ScoredGroup
from rstar_trainer.seeds import derive_seed

__all__ = ["GroupCollector"]


class GroupCollector:
    """Makes scored and resampled groups through the rollout, reward and sampling services.

    Args:
        rollouts: the rollout service.
        reward: channel to the reward service.
        sampling: channel to the sampling service.
        tool: limits of a tool call.
        run_seed: of the recipe.
    """

    def __init__(
        self,
        rollouts: RolloutSource,
        reward: grpc.aio.Channel,
        sampling: grpc.aio.Channel,
        tool: ToolSettings,
        run_seed: int,
    ) -> None:
        self._rollouts = rollouts
        self._scorer = RewardServiceScorer(reward)
        self._sampling = SamplingClient(sampling)
        self._tool = tool
        self._run_seed = run_seed

    async def collect(
        self,
        problems: Sequence[TrainProblem],
        stage: Stage,
        step: int,
        round_number: int = 0,
        on_scored: Callable[[int, int], None] | None = None,
        *,
        carried: Iterable[ScoredGroup] = (),
        stop_after_groups: int = 0,
    ) -> list[ScoredGroup]:
        """Rolls out, scores and resamples one group per problem.

        With `stop_after_groups` some groups come back without being complete: `resampled` is None, and `partial` has
        what was generated.

        Args:
            problems: distinct problems of this step.
            stage: limits, over-sampling, RoC settings.
            step: 0-based step of the stage; part of the seeds.
            round_number: 0, or the refill round.
            on_scored: told (scored, total) after each verdict.
            carried: groups of earlier steps to go on with.
            stop_after_groups: when the rollouts of so many groups have ended, the others are stopped; 0: never.

        Returns:
            Groups in the order of `carried` and `problems`.

        Raises:
            ServiceUnavailableError: a service stayed away.
        """
        place = f"{stage.name}/{step}" + (f"/{round_number}" if round_number else "")
        groups = {group.group_id: group for group in carried}
        groups |= {f"{place}/{p.problem_id}": ScoredGroup(f"{place}/{p.problem_id}", p) for p in problems}
        requests = [request for group in groups.values() for request in _requests(group, stage)]
        seed = derive_seed(self._run_seed, "rollout", stage.name, step, round_number)
        total, scored = sum(request.samples for request in requests), 0

        async def finish(group: ScoredGroup, trajectory: Trajectory) -> None:
            nonlocal scored
            await self._score(group, trajectory)
            scored += 1
            if on_scored:
                on_scored(scored, total)
            if len(group.verdicts) == stage.rollouts_per_problem:
                group.resampled = await self._resample(group, stage, step)

        pending: list[asyncio.Task[None]] = []
        try:
            async for trajectory in self._generated(requests, stage, seed, stop_after_groups):
                group = groups.get(trajectory.group_id)
                if group is None:
                    raise InfrastructureError(f"a rollout of {trajectory.group_id!r} came, which was not asked for")
                if stop_after_groups and trajectory.end_reason is EndReason.CANCELLED:
                    if trajectory.policy_tokens:
                        group.partial[trajectory.sample_index] = trajectory
                    continue
                group.partial.pop(trajectory.sample_index, None)
                pending.append(asyncio.ensure_future(finish(group, trajectory)))
            await asyncio.gather(*pending)
        finally:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
        return list(groups.values())

    async def select(self, groups: Sequence[ScoredGroup], stage: Stage, round_number: int) -> GroupSelection:
        """Which complete groups a step has after a round, and how many more it should roll out.

        Args:
            groups: of all rounds so far.
            stage: how many groups are wanted, and rounds at most.
            round_number: refill rounds behind us.

        Raises:
            ServiceUnavailableError: the sampling service stayed away.
        """
        return await self._sampling.select_groups(
            {group.group_id: group.rejected for group in groups},
            stage.problems_per_step,
            rounds_done=round_number,
            max_rounds=stage.refill_rounds,
        )

    def _generated(
        self, requests: Sequence[ProblemRequest], stage: Stage, seed: int, stop_after_groups: int
    ) -> AsyncIterator[Trajectory]:
        return self._rollouts.generate_groups(
            requests,
            SamplingSettings(temperature=stage.temperature, seed=seed, log_probs=True),
            RolloutLimits(
                max_turns=stage.max_turns,
                max_response_tokens=stage.max_response_tokens,
                max_tool_output_tokens=self._tool.max_output_tokens,
            ),
            ToolLimits(wall_seconds=self._tool.wall_seconds, memory_bytes=self._tool.memory_bytes),
            stop_after_groups=stop_after_groups,
        )

    async def _score(self, group: ScoredGroup, trajectory: Trajectory) -> None:
        problem = group.problem.as_eval()
        verdict = await self._scorer.score(problem, trajectory, request_id=trajectory.trajectory_id)
        group.trajectories[trajectory.sample_index] = trajectory
        group.verdicts[trajectory.sample_index] = verdict

    async def _resample(self, group: ScoredGroup, stage: Stage, step: int) -> Resampled:
        rollouts = [
            ScoredRollout.of(trajectory, group.verdicts[index].reward)
            for index, trajectory in sorted(group.trajectories.items())
        ]
        return await self._sampling.resample(
            group.group_id,
            rollouts,
            keep=stage.group_size,
            seed=derive_seed(self._run_seed, "resample", stage.name, step),
            epsilon=stage.roc.epsilon,
            enabled=stage.roc.enabled,
        )


def _requests(group: ScoredGroup, stage: Stage) -> list[ProblemRequest]:
    """The rollouts that a group still lacks; one that has waited long enough is not stopped once more."""
    whole = ProblemRequest(
        problem_id=group.problem.problem_id,
        group_id=group.group_id,
        prompt=group.problem.text,
        samples=stage.rollouts_per_problem,
        partial=tuple(group.partial[index] for index in sorted(group.partial)),
        must_finish=stage.partial is not None and group.carried >= stage.partial.max_steps,
    )
    return requests_for(whole, [index for index in whole.sample_indices if index not in group.verdicts])
