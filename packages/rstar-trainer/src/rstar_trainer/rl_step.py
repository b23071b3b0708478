"""One GRPO-RoC rollout step: rollout -> reward -> resample -> advantage, ready for the learner's update.

Trajectories are scored as they stream in, and a group is resampled as soon as its last one is scored. What cannot be
scored (infrastructure) is left out of its group and counted; it is never a reward of 0.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import grpc.aio

from rstar_eval.scoring import RewardServiceScorer, Verdict
from rstar_model.trajectory import Trajectory
from rstar_model.types import EndReason
from rstar_protos.errors import InfrastructureError
from rstar_rollout.client import SamplingClient
from rstar_rollout.limits import ProblemRequest, RolloutLimits, SamplingSettings
from rstar_rollout.limits import ToolSettings as ToolLimits
from rstar_rollout.roc import Resampled, ScoredRollout
from rstar_trainer.data import TrainProblem
from rstar_trainer.objective import group_advantages
from rstar_trainer.recipe import Stage, ToolSettings
from rstar_trainer.rollouts import RolloutSource, requests_for
from rstar_trainer.seeds import derive_seed
from rstar_trainer.sequences import WeightedSequence

__all__ = ["GroupCollector", "ScoredGroup", "rollout_digest", "training_sequences"]


@dataclass
class ScoredGroup:
    """All rollouts of one problem instance, their verdicts, and which of them are trained on.

    Attributes:
        group_id: names the step that began it.
        problem: its problem.
        trajectories: rollouts that have ended, by sample index.
        verdicts: of them.
        resampled: set when the group is complete.
        partial: rollouts that a step has stopped, by sample index; the next step goes on with them.
        carried: steps that have ended without it.
    """

    group_id: str
    problem: TrainProblem
    trajectories: dict[int, Trajectory] = field(default_factory=dict)
    verdicts: dict[int, Verdict] = field(default_factory=dict)
    resampled: Resampled | None = None
    partial: dict[int, Trajectory] = field(default_factory=dict)
    carried: int = 0

    @property
    def policy_tokens(self) -> int:
        """Generated so far, whatever became of them."""
        return sum(t.policy_tokens for found in (self.trajectories, self.partial) for t in found.values())

    @property
    def rejected(self) -> bool:
        """Equal rewards, or nothing scored: the group teaches nothing and counts in no denominator."""
        return self.resampled is None or self.resampled.rejected

    @property
    def rewards(self) -> list[float]:
        """Rewards of the scored rollouts before resampling, by sample index."""
        found = [self.verdicts[index].reward for index in sorted(self.verdicts)]
        return [reward for reward in found if reward is not None]

    def kept(self) -> list[tuple[Trajectory, float]]:
        """The kept rollouts with their rewards, by sample index."""
        ids = set(self.resampled.kept_ids) if self.resampled else set()
        pairs = [(self.trajectories[index], self.verdicts[index].reward) for index in sorted(self.verdicts)]
        return [(t, reward) for t, reward in pairs if t.trajectory_id in ids and reward is not None]


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
        total = sum(request.samples for request in requests)
        seed = derive_seed(self._run_seed, "rollout", stage.name, step, round_number)
        scored = 0

        async def score(group: ScoredGroup, trajectory: Trajectory) -> None:
            nonlocal scored
            problem = group.problem.as_eval()
            verdict = await self._scorer.score(problem, trajectory, request_id=trajectory.trajectory_id)
            group.trajectories[trajectory.sample_index] = trajectory
            group.verdicts[trajectory.sample_index] = verdict
            scored += 1
            if on_scored:
                on_scored(scored, total)
            if len(group.verdicts) == stage.rollouts_per_problem:
                group.resampled = await self._resample(group, stage, step)

        pending: list[asyncio.Task[None]] = []
        try:
            async for trajectory in self._rollouts.generate_groups(
                requests,
                SamplingSettings(temperature=stage.temperature, seed=seed, log_probs=True),
                RolloutLimits(
                    max_turns=stage.max_turns,
                    max_response_tokens=stage.max_response_tokens,
                    max_tool_output_tokens=self._tool.max_output_tokens,
                ),
                tool_settings(self._tool),
                stop_after_groups=stop_after_groups,
            ):
                if trajectory.group_id not in groups:
                    raise InfrastructureError(f"a rollout of {trajectory.group_id!r} came, which was not asked for")
                partial = groups[trajectory.group_id].partial
                if stop_after_groups and trajectory.end_reason is EndReason.CANCELLED:
                    if trajectory.policy_tokens:
                        partial[trajectory.sample_index] = trajectory
                    continue
                partial.pop(trajectory.sample_index, None)
                pending.append(asyncio.ensure_future(score(groups[trajectory.group_id], trajectory)))
            await asyncio.gather(*pending)
        finally:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
        return list(groups.values())

    async def _resample(self, group: ScoredGroup, stage: Stage, step: int) -> Resampled:
        rollouts = [
            ScoredRollout(
                trajectory_id=trajectory.trajectory_id,
                reward=group.verdicts[index].reward,
                tool_calls=len(trajectory.tool_calls),
                failed_tool_calls=trajectory.failed_tool_calls,
                answer_tags=trajectory.answer_tags,
                turns=trajectory.turns,
            )
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


def tool_settings(tool: ToolSettings, *, enabled: bool = True) -> ToolLimits:
    """The recipe's tool limits as the rollout service takes them."""
    return ToolLimits(enabled=enabled, wall_seconds=tool.wall_seconds, memory_bytes=tool.memory_mb * 1024 * 1024)


def training_sequences(groups: Sequence[ScoredGroup], stage: Stage) -> list[WeightedSequence]:
    """The kept rollouts of accepted groups with their advantages; each rollout weighs once."""
    sequences = []
    for number, group in enumerate(group for group in groups if not group.rejected):
        kept = group.kept()
        if len(kept) > stage.group_size:
            raise InfrastructureError(
                f"group {group.group_id}: {len(kept)} rollouts kept, more than {stage.group_size}"
            )
        advantages = group_advantages([reward for _, reward in kept], stage.loss.advantage)
        sequences += [
            WeightedSequence.from_ledger(trajectory.ledger, number, advantage)
            for (trajectory, _), advantage in zip(kept, advantages, strict=True)
        ]
    # A rollout without a policy token (truncated before its first) has nothing that could be changed.
    return [sequence for sequence in sequences if sequence.policy_tokens]


def rollout_digest(groups: Sequence[ScoredGroup]) -> str:
    """SHA-256 over all token ids, rewards and kept ids of a step: equal digests, equal rollouts."""
    digest = hashlib.sha256()
    for group in groups:
        for index in sorted(group.trajectories):
            record = [group.group_id, index, group.trajectories[index].ledger.token_ids, group.verdicts[index].reward]
            digest.update(json.dumps(record).encode())
        digest.update(json.dumps(group.resampled.kept_ids if group.resampled else None).encode())
    return digest.hexdigest()


def step_figures(groups: Sequence[ScoredGroup]) -> dict[str, float]:
    """What is logged of the rollouts of a step, before resampling; shares are over scored rollouts."""
    trajectories = [t for g in groups for i, t in sorted(g.trajectories.items()) if g.verdicts[i].reward is not None]
    rewards = [reward for group in groups for reward in group.rewards]
    everything = sum(len(group.trajectories) for group in groups)
    count, ends = max(1, len(trajectories)), Counter(t.end_reason.value for t in trajectories)
    calls = sum(len(t.tool_calls) for t in trajectories)
    correct = [t for g in groups for i, t in sorted(g.trajectories.items()) if g.verdicts[i].reward == 1]
    correct_calls = sum(len(t.tool_calls) for t in correct)
    solved = [group for group in groups if group.rewards and min(group.rewards) == 1.0]
    return {
        "reward": sum(rewards) / max(1, len(rewards)),
        "rollouts": float(everything),
        "unscorable": float(everything - len(trajectories)),
        "truncation_share": ends["truncated"] / count,
        "tool_calls_per_rollout": calls / count,
        "tool_error_share": sum(t.failed_tool_calls for t in trajectories) / max(1, calls),
        "tool_error_share_correct": sum(t.failed_tool_calls for t in correct) / max(1, correct_calls),
        "response_tokens": sum(t.response_tokens for t in trajectories) / count,
        "policy_tokens": sum(t.policy_tokens for t in trajectories) / count,
        "turns": sum(t.turns for t in trajectories) / count,
        "groups_kept": float(sum(not group.rejected for group in groups)),
        "groups_rejected": float(sum(group.rejected for group in groups)),
        "groups_solved_share": len(solved) / max(1, len(groups)),
    }


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
