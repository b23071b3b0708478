"""Held-out evaluation within a run: the evaluator of rstar-eval, on the run's own services."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc.aio

from rstar_eval.evaluate import evaluate
from rstar_eval.report import Report
from rstar_eval.settings import EvalSettings
from rstar_protos.errors import ServiceUnavailableError
from rstar_trainer.data import TrainProblem
from rstar_trainer.recipe import Recipe, Stage
from rstar_trainer.rollouts import RolloutSource
from rstar_trainer.seeds import derive_seed

__all__ = ["Evaluator"]


class Evaluator:
    """Evaluates the policy that the engines hold.

    Args:
        recipe: sampling settings and limits.
        rollouts: the rollout service.
        reward: channel to the reward service.
        run_dir: samples go to `evaluations/<name>.jsonl` there.
    """

    def __init__(self, recipe: Recipe, rollouts: RolloutSource, reward: grpc.aio.Channel, run_dir: Path) -> None:
        self._recipe = recipe
        self._rollouts = rollouts
        self._reward = reward
        self._run_dir = run_dir

    async def evaluate(
        self,
        name: str,
        problems: Sequence[TrainProblem],
        *,
        policy: str,
        tools_enabled: bool = True,
        on_sample: Callable[[int, int], None] | None = None,
    ) -> Report:
        """pass@1 of the current policy on held-out problems.

        Args:
            name: of the evaluation and its file.
            problems: all of them, or the fixed subset.
            policy: version and checksum; samples of another policy in the file are refused.
            tools_enabled: False for the ablation.
            on_sample: told (done, total) after each sample.

        Raises:
            ServiceUnavailableError: samples were lost for good.
        """
        settings = self._recipe.evaluation
        return await self._sample(
            name,
            problems,
            self._settings(
                samples=settings.samples,
                temperature=settings.temperature,
                max_turns=settings.max_turns,
                max_response_tokens=settings.max_response_tokens,
                tools_enabled=tools_enabled,
                seed=derive_seed(self._recipe.seed, "evaluation"),
            ),
            policy,
            on_sample,
        )

    async def answer(
        self,
        name: str,
        problems: Sequence[TrainProblem],
        stage: Stage,
        *,
        policy: str,
        on_sample: Callable[[int, int], None] | None = None,
    ) -> Report:
        """The current policy's answers to training problems under the limits of a stage, for its hard filter.

        Args:
            name: of the file of samples.
            problems: candidates.
            stage: with `hard_filter` settings.
            policy: as `evaluate`.
            on_sample: as `evaluate`.

        Raises:
            ServiceUnavailableError: samples were lost for good.
        """
        assert stage.hard_filter is not None, "checked with the recipe"
        settings = self._settings(
            samples=stage.hard_filter.samples,
            temperature=stage.temperature,
            max_turns=stage.max_turns,
            max_response_tokens=stage.max_response_tokens,
            tools_enabled=True,
            seed=derive_seed(self._recipe.seed, "hard-filter-rollout", stage.name),
        )
        return await self._sample(name, problems, settings, policy, on_sample)

    def _settings(self, **values: Any) -> EvalSettings:
        """Sampling settings with the run's tool limits."""
        tool = self._recipe.tool
        return EvalSettings(
            max_tool_output_tokens=tool.max_output_tokens,
            tool_wall_seconds=tool.wall_seconds,
            tool_memory_bytes=tool.memory_bytes,
            **values,
        )

    async def _sample(
        self,
        name: str,
        problems: Sequence[TrainProblem],
        settings: EvalSettings,
        policy: str,
        on_sample: Callable[[int, int], None] | None,
    ) -> Report:
        total, done = len(problems) * settings.samples, 0

        def count(_: object) -> None:
            nonlocal done
            done += 1
            if on_sample:
                on_sample(done, total)

        report = await evaluate(
            [problem.as_eval() for problem in problems],
            self._rollouts,
            self._reward,
            settings,
            count,
            samples_path=samples_file(self._run_dir, name),
            name=name,
            policy=policy,
        )
        if not report.complete:
            raise ServiceUnavailableError(
                f"evaluation {name}: {report.missing} samples were lost to infrastructure for good"
            )
        return report


def samples_file(run_dir: Path, name: str) -> Path:
    """Where the samples of an evaluation are."""
    return run_dir / "evaluations" / f"{name}.jsonl"
