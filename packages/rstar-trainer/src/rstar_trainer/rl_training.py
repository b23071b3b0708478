"""The steps of one RL stage: draw problems, collect groups, refill rejected ones, update, write everything down."""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

from rstar_protos.errors import ServiceUnavailableError, UserInputError
from rstar_rollout.roc_groups import SelectionOutcome
from rstar_trainer.carried import CarriedGroups, partial_figures
from rstar_trainer.checkpoint import RunState
from rstar_trainer.data import ProblemSampler
from rstar_trainer.learner_thread import LearnerThread
from rstar_trainer.recipe import Stage
from rstar_trainer.rl_step import GroupCollector
from rstar_trainer.run_context import RunContext
from rstar_trainer.schedule import warmup_learning_rate
from rstar_trainer.scored_group import ScoredGroup
from rstar_trainer.step_figures import rollout_digest, step_figures
from rstar_trainer.training_sequences import training_sequences
from rstar_trainer.trajectory_file import trajectory_file, write_trajectories
from rstar_trainer.update_metrics import UpdateMetrics

__all__ = ["StageContext", "StageTraining"]


class StageContext(Protocol):
    """What a stage needs of the run it belongs to."""

    context: RunContext
    thread: LearnerThread
    collector: GroupCollector
    state: RunState

    async def send_weights(self) -> str:
        """Makes the engines use the learner's current policy."""

    async def update(self, function: Callable[..., UpdateMetrics], *arguments: Any) -> UpdateMetrics:
        """An update by the learner."""

    def advance(self, tokens: int, *, updated: bool) -> None:
        """Counts one step."""


class StageTraining:
    """Steps of one stage.

    Args:
        runner: the run.
        stage: its settings.
        sampler: of its problems; its state is the caller's to save.
    """

    def __init__(self, runner: StageContext, stage: Stage, sampler: ProblemSampler) -> None:
        self._runner, self._stage, self._sampler = runner, stage, sampler
        self._carried = CarriedGroups(runner.context.folder.path, stage, runner.context.recipe.checkpoint)

    async def step(self) -> None:
        """One rollout step and its update; a step without any accepted group is counted, logged and skipped."""
        runner, stage = self._runner, self._stage
        number, started = runner.state.step, time.perf_counter()
        await runner.send_weights()
        carried = self._continued(number)
        held = sum(group.policy_tokens for group in carried)
        everything = await (self._collect(number) if stage.partial is None else self._collect_some(number, carried))
        generated = sum(group.policy_tokens for group in everything) - held
        groups = [group for group in everything if group.resampled is not None]
        _check_scored(f"{stage.name} step {number + 1}", groups)
        rollout_seconds = time.perf_counter() - started
        sequences = training_sequences(groups, stage)
        rate = warmup_learning_rate(number, stage.learning_rate, stage.warmup_steps)
        metrics: UpdateMetrics | None = None
        if sequences:
            runner.context.show_phase("update", 0, 1)
            metrics = await runner.update(
                runner.thread.learner.policy_update, sequences, rate, stage.temperature, stage.loss
            )
        else:
            runner.context.event(f"{stage.name} step {number + 1}: no group had unequal rewards; no update")
        write_trajectories(trajectory_file(runner.context.folder.path, stage.name, number + 1), groups)
        left = [group for group in everything if group.resampled is None]
        if stage.partial is not None:
            self._carried.write(number + 1, left)
        version = runner.state.weight_version
        runner.advance(metrics.tokens if metrics else 0, updated=metrics is not None)
        values = self._figures(groups, metrics, rate, rollout_seconds, generated)
        if stage.partial is not None:
            values |= partial_figures(groups, left, version)
        runner.context.log.log(
            "rl",
            global_step=runner.state.global_step,
            stage=stage.name,
            values=values,
            text=f"rollouts sha256 {rollout_digest(groups)}",
        )
        runner.context.progress.step(values)

    async def _collect(self, number: int) -> list[ScoredGroup]:
        """Groups of this step, rejected ones replaced for at most `refill_rounds` rounds."""
        groups: list[ScoredGroup] = []
        wanted = self._stage.problems_per_step
        for round_number in itertools.count():
            text = "rollout" if round_number == 0 else f"rollout (refill {round_number})"
            groups += await self._runner.collector.collect(
                self._sampler.draw(wanted),
                self._stage,
                number,
                round_number,
                # Mypy cannot infer a bound default.
                lambda done, total, text=text: self._runner.context.show_phase(text, done, total),  # type: ignore[misc]
            )
            selection = await self._runner.collector.select(groups, self._stage, round_number)
            if selection.outcome is not SelectionOutcome.REFILL:
                break
            wanted = selection.refill
        return groups

    def _continued(self, number: int) -> list[ScoredGroup]:
        """What the step before has stopped; a resumed run reads it from the run folder."""
        if self._stage.partial is None or number == 0:
            return []
        carried = self._carried.read(number, self._runner.context.problems)
        if carried.lost:
            self._runner.context.event(f"{self._stage.name} step {number + 1}: {carried.lost}")
        return carried.groups

    async def _collect_some(self, number: int, carried: list[ScoredGroup]) -> list[ScoredGroup]:
        """Groups of this step and others that have to go on; the stage's last step begins no more than it finishes."""
        last = number + 1 == self._stage.steps
        under_way = self._stage.problems_per_step if last else self._stage.problems_under_way
        return await self._runner.collector.collect(
            self._sampler.draw(max(0, under_way - len(carried))),
            self._stage,
            number,
            on_scored=lambda done, total: self._runner.context.show_phase("rollout", done, total),
            carried=carried,
            stop_after_groups=0 if last else self._stage.problems_per_step,
        )

    def _figures(
        self,
        groups: list[ScoredGroup],
        metrics: UpdateMetrics | None,
        rate: float,
        rollout_seconds: float,
        generated: int,
    ) -> dict[str, float]:
        values = {
            **step_figures(groups),
            "learning_rate": rate,
            "rollout_seconds": rollout_seconds,
            "rollout_tokens_per_second": generated / rollout_seconds,
            "update_skipped": float(metrics is None),
        }
        if metrics is not None:
            values.update(
                {
                    "loss": metrics.loss,
                    "grad_norm": metrics.grad_norm,
                    "ratio": metrics.ratio,
                    "clip_low_share": metrics.clip_low_share,
                    "clip_high_share": metrics.clip_high_share,
                    "entropy": metrics.entropy,
                    "kl": metrics.kl,
                    "mismatch": metrics.mismatch,
                    "mismatch_kl": metrics.mismatch_kl,
                    "engine_weight": metrics.engine_weight,
                    "engine_truncated_share": metrics.engine_truncated_share,
                    "policy_tokens_per_group": metrics.policy_tokens_per_group,
                    "trained_policy_tokens": float(metrics.policy_tokens),
                    "update_seconds": metrics.seconds,
                    "train_tokens_per_second": metrics.tokens / metrics.seconds,
                }
            )
        return {name: value for name, value in values.items() if not math.isnan(value)}


def _check_scored(step: str, groups: list[ScoredGroup]) -> None:
    """A step of which nothing could be scored is a fault, not a step without signal.

    Raises:
        UserInputError: every gold answer is unusable.
        ServiceUnavailableError: infrastructure lost every rollout.
    """
    if any(group.rewards for group in groups):
        return
    statuses = Counter(verdict.status for group in groups for verdict in group.verdicts.values())
    if set(statuses) == {"bad_gold"}:
        raise UserInputError("data.train", f"{step}: no gold answer can be read", "problems whose answers can be read")
    raise ServiceUnavailableError(f"{step}: no rollout could be scored ({dict(statuses)})")
