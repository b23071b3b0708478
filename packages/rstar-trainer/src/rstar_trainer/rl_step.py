"""One GRPO-RoC rollout step: rollout -> reward -> resample -> advantage, ready for the learner's update.

Trajectories are scored as they stream in, and a group is resampled as soon as its last one is scored. What cannot be
scored (infrastructure) is left out of its group and counted; it is never a reward of 0.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import grpc.aio

from rstar_eval.problems import EvalProblem
from rstar_eval.scoring import RewardServiceScorer, Verdict
from rstar_model.trajectory import Trajectory
from rstar_protos.errors import InfrastructureError
from rstar_rollout.client import SamplingClient
from rstar_rollout.limits import ProblemRequest, RolloutLimits, SamplingSettings
from rstar_rollout.limits import ToolSettings as ToolLimits
from rstar_rollout.roc import Resampled, ScoredRollout
from rstar_trainer.data import TrainProblem
from rstar_trainer.objective import group_advantages
from rstar_trainer.recipe import Stage, ToolSettings
from rstar_trainer.rollouts import RolloutSource
from rstar_trainer.seeds import derive_seed
from rstar_trainer.sequences import WeightedSequence

__all__ = ["GroupCollector", "ScoredGroup", "rollout_digest", "training_sequences"]


@dataclass
class ScoredGroup:
    """All rollouts of one problem instance, their verdicts, and which of them are trained on."""

    group_id: str
    problem: TrainProblem
    trajectories: dict[int, Trajectory] = field(default_factory=dict)
    verdicts: dict[int, Verdict] = field(default_factory=dict)
    resampled: Resampled | None = None

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
    ) -> list[ScoredGroup]:
        """Rolls out, scores and resamples one group per problem.

        Args:
            problems: distinct problems of this step.
            stage: limits, over-sampling, RoC settings.
            step: 0-based step of the stage; part of the seeds.
            round_number: 0, or the refill round.
            on_scored: told (scored, total) after each verdict.

        Returns:
            Groups in the order of `problems`.

        Raises:
            ServiceUnavailableError: a service stayed away.
        """
        place = f"{stage.name}/{step}" + (f"/{round_number}" if round_number else "")
        groups = {f"{place}/{p.problem_id}": ScoredGroup(f"{place}/{p.problem_id}", p) for p in problems}
        total = len(groups) * stage.rollouts_per_problem
        seed = derive_seed(self._run_seed, "rollout", stage.name, step, round_number)
        scored = 0

        async def score(group: ScoredGroup, trajectory: Trajectory) -> None:
            nonlocal scored
            problem = EvalProblem(group.problem.problem_id, group.problem.text, group.problem.answer)
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
                [_request(group, stage.rollouts_per_problem) for group in groups.values()],
                SamplingSettings(temperature=stage.temperature, seed=seed, log_probs=True),
                RolloutLimits(
                    max_turns=stage.max_turns,
                    max_response_tokens=stage.max_response_tokens,
                    max_tool_output_tokens=self._tool.max_output_tokens,
                ),
                tool_settings(self._tool),
            ):
                if trajectory.group_id not in groups:
                    raise InfrastructureError(f"a rollout of {trajectory.group_id!r} came, which was not asked for")
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


def _request(group: ScoredGroup, samples: int) -> ProblemRequest:
    return ProblemRequest(
        problem_id=group.problem.problem_id, group_id=group.group_id, prompt=group.problem.text, samples=samples
    )
