"""The entries of a run, one after another: training (nothing for the base), checkpoint, evaluation, report."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rstar_eval.report import Report
from rstar_eval.sample_log import read_samples
from rstar_model.tokenizer import Tokenizer
from rstar_rollout.client import RolloutClient
from rstar_trainer.checkpoint import CheckpointWriter, RunState
from rstar_trainer.data import ProblemSampler, TrainProblem
from rstar_trainer.evaluation import Evaluator, samples_file
from rstar_trainer.hard_filter import choose_candidates, keep_hard
from rstar_trainer.learner_thread import LearnerThread
from rstar_trainer.recipe import Stage
from rstar_trainer.report import stage_entry
from rstar_trainer.results import finish_report
from rstar_trainer.rl_step import GroupCollector
from rstar_trainer.rl_training import StageTraining
from rstar_trainer.rollouts import RolloutSource
from rstar_trainer.run_context import RunContext
from rstar_trainer.schedule import supervised_learning_rate
from rstar_trainer.seeds import derive_seed
from rstar_trainer.services import Services
from rstar_trainer.sft import recipe_data
from rstar_trainer.update_metrics import UpdateMetrics
from rstar_trainer.weight_delivery import FolderDelivery, TransferDelivery, WeightDelivery

__all__ = ["EntryRunner", "StoppedEarly"]

_ABLATION = "tool-disabled"


class StoppedEarly(Exception):  # noqa: N818 - not an error: somebody asked for it
    """The run was asked to stop; its checkpoint is written."""


class EntryRunner:
    """Runs the entries of one run.

    Args:
        context: of the run.
        thread: holds the learner.
        tokenizer: of the policy.
        services: that the run is composed of.
        checkpoints: writes them.
    """

    def __init__(
        self,
        context: RunContext,
        thread: LearnerThread,
        tokenizer: Tokenizer,
        services: Services,
        checkpoints: CheckpointWriter,
    ) -> None:
        self.context, self.thread, self.state = context, thread, RunState()
        self._checkpoints = checkpoints
        recipe, reward = context.recipe, services.channel("reward")
        self._recipe, self._tokenizer = recipe, tokenizer
        self._rollouts = RolloutSource(services, self._delivery(services), sleeping=recipe.engine.sleep_level > 0)
        self._evaluator = Evaluator(recipe, self._rollouts, reward, context.folder.path)
        self.collector = GroupCollector(self._rollouts, reward, services.channel("sampling"), recipe.tool, recipe.seed)

    async def load(self, checkpoint: Path, state: RunState) -> None:
        """Takes over a checkpoint.

        Raises:
            UserInputError: the learner cannot read its part.
        """
        await self.thread.compute(self.thread.learner.load_saved, checkpoint)
        for name in self._recipe.entries[state.entry + 1 :]:
            # Made by a policy that will be made again: equal where everything is deterministic, but never mixed.
            for path in (self.context.folder.path / "evaluations").glob(f"{name}*.jsonl"):
                path.unlink()

    async def run_all(self, state: RunState) -> None:
        """Runs every entry from where `state` is to the end, then the results.

        Raises:
            StoppedEarly: the TrainerService was asked to stop the run.
        """
        self.state = state
        for index in range(state.entry, len(self._recipe.entries)):
            if index != self.state.entry:
                self.state.entry, self.state.step = index, 0
            await self._run_entry(self._recipe.entries[index])
        await self._finish()

    async def _run_entry(self, name: str) -> None:
        started = time.monotonic() - self.state.seconds.get(name, 0.0)

        def clock() -> None:
            self.state.seconds[name] = round(time.monotonic() - started, 1)

        if name == "sft":
            await self._supervised(clock)
        elif name != "base":
            await self._reinforced(self._stage(name), clock)
        report = await self._evaluate(name)
        unseen = {}
        if self._recipe.is_full_evaluation(name):
            unseen = {tag: await self._evaluate(name, tag=tag) for tag in self.context.heldout.unseen}
        clock()
        entry = stage_entry(name, report, steps=self._steps(name), rl_steps=self._rl_steps(name), unseen=unseen)
        entry["seconds"] = self.state.seconds[name]
        self.context.report.add_entry(entry)
        self.context.progress.evaluation(entry)
        shown = {key: value for key, value in entry.items() if isinstance(value, int | float)}
        self.context.log.log("evaluation", global_step=self.state.global_step, stage=name, values=shown)

    async def _supervised(self, clock: Callable[[], None]) -> None:
        settings, learner = self._recipe.sft, self.thread.learner
        self._enter("sft", settings.steps)
        if self.state.step == settings.steps:
            return
        data = recipe_data(self._recipe, self._tokenizer)
        for note in data.notes:
            self.context.event(note)
        while self.state.step < settings.steps:
            step = self.state.step
            rate = supervised_learning_rate(
                step, settings.steps, settings.learning_rate, settings.warmup_fraction, settings.schedule
            )
            metrics = await self.update(
                learner.supervised_update, data.batches[step], rate, settings.micro_batch_tokens
            )
            self.advance(metrics.tokens, updated=True)
            values = {
                "loss": metrics.loss,
                "grad_norm": metrics.grad_norm,
                "learning_rate": rate,
                "train_tokens_per_second": metrics.tokens / metrics.seconds,
            }
            self.context.log.log("sft", global_step=self.state.global_step, stage="sft", values=values)
            self.context.progress.step(values)
            if self.state.step == settings.steps:
                # RL starts with fresh moments: those of another objective would steer its first steps.
                await self.thread.compute(learner.reset_optimizer)
            clock()
            await self._after_step(settings.steps, settings.checkpoint_every_steps)

    async def _reinforced(self, stage: Stage, clock: Callable[[], None]) -> None:
        self._enter(stage.name, stage.steps)
        if self.state.step == stage.steps:
            return
        if stage.reset_optimizer and self.state.step == 0:
            await self.thread.compute(self.thread.learner.reset_optimizer)
            self.context.event(f"{stage.name}: optimizer state reset")
        pool, problems = "all", self.context.problems
        if stage.data == "hard":
            pool, problems = stage.name, await self._hard_problems(stage)
        sampler = ProblemSampler(problems, derive_seed(self._recipe.seed, "sampler", pool))
        if pool in self.state.samplers:
            sampler.load_state_dict(self.state.samplers[pool])
        training = StageTraining(self, stage, sampler)
        while self.state.step < stage.steps:
            await training.step()
            self.state.samplers[pool] = sampler.state_dict()
            clock()
            await self._after_step(stage.steps, self._recipe.checkpoint.every_steps)

    async def _after_step(self, steps: int, every_steps: int) -> None:
        """Begins the checkpoint that is due, and stops when asked to.

        Args:
            steps: of the entry; one checkpoint also ends it.
            every_steps: between checkpoints.
        """
        control = self.context.control
        stopping = control.stop_requested.is_set()
        due = self.state.step % every_steps == 0 or self.state.step == steps
        asked = stopping or control.checkpoint_requested.is_set()
        if due or asked:
            control.checkpoint_requested.clear()
            await self._checkpoint()
        if asked:  # somebody waits for it
            await self.thread.compute(self._checkpoints.wait)
        if stopping:
            raise StoppedEarly

    async def _hard_problems(self, stage: Stage) -> list[TrainProblem]:
        """The training problems of a stage on hard data; filtered once, then part of every checkpoint."""
        problems, seed = self.context.problems, self._recipe.seed
        if stage.name not in self.state.hard_problems:
            settings = stage.hard_filter
            assert settings is not None, "checked with the recipe"
            candidates = choose_candidates(problems, settings.problems, derive_seed(seed, "hard-filter", stage.name))
            report = await self._evaluator.answer(
                f"{stage.name}-hard-filter",
                candidates,
                stage,
                policy=await self.send_weights(),
                on_sample=lambda done, total: self.context.show_phase("hard filter", done, total),
            )
            left = keep_hard(candidates, report, stage.problems_under_way)
            self.state.hard_problems[stage.name] = [problem.problem_id for problem in left.problems]
            self.context.event(
                f"{stage.name}: hard filter kept {len(left.problems)} of {len(candidates)} problems; "
                f"{left.solved} were solved in all {settings.samples} samples, "
                f"{left.returned} of them put back to fill a step"
            )
        by_id = {problem.problem_id: problem for problem in problems}
        return [by_id[problem_id] for problem_id in self.state.hard_problems[stage.name]]

    async def _evaluate(self, name: str, tag: str = "", *, tools_enabled: bool = True) -> Report:
        title, heldout = f"{name}-{tag}" if tag else name, self.context.heldout
        problems = heldout.unseen.get(tag, heldout.problems)
        if not tag:
            problems = problems[: self._recipe.evaluation_problems(name)]
        return await self._evaluator.evaluate(
            title,
            problems,
            policy=await self.send_weights(),
            tools_enabled=tools_enabled,
            on_sample=lambda done, total: self.context.show_phase(f"evaluate {title}", done, total),
        )

    async def _finish(self) -> None:
        """The ablation, the Hugging Face folder of the final policy, and everything a person looks at."""
        last, run_dir = self._recipe.entries[-1], self.context.folder.path
        if self._recipe.evaluation.ablate_tool:
            report = await self._evaluate(last, _ABLATION, tools_enabled=False)
            self.context.report.set(tool_disabled=report.overall.to_json_dict())
        self.context.show_phase("export", 0, 1)
        checkpoint = run_dir / "policy"
        await self.thread.compute(self.thread.learner.save_pretrained, checkpoint)
        before = "sft" if "sft" in self._recipe.entries else "base"
        finish_report(
            self.context.report,
            log=self.context.log,
            problems=self.context.heldout.problems,
            before=read_samples(samples_file(run_dir, before)),
            after=read_samples(samples_file(run_dir, last)),
            before_name=before,
            after_name=last,
            checkpoint=checkpoint,
            console=self.context.progress.console,
        )
        if self._recipe.engine.weights_dir is not None:  # memory that would stay taken
            shutil.rmtree(self._weights_folder, ignore_errors=True)

    async def send_weights(self) -> str:
        """Makes the engines use the learner's current policy; returns its version and checksum."""
        version = self.state.weight_version
        if version != self._rollouts.version:
            self.context.show_phase("weights", 0, 1)
        checksum = await self._rollouts.use_weights(version)
        return f"version {version}, sha256 {checksum[:16]}"

    async def update(self, function: Callable[..., UpdateMetrics], *arguments: Any) -> UpdateMetrics:
        """An update by the learner, which the engines make room for where they share its device."""
        await self._rollouts.rest()
        return await self.thread.compute(function, *arguments)

    def _delivery(self, services: Services) -> WeightDelivery:
        client = RolloutClient(services.channel("rollout"))
        if self._recipe.engine.transfer == "files":
            return FolderDelivery(self.thread, client, self._weights_folder)
        endpoint, security = services.endpoint("rollout"), services.security("rollout")
        return TransferDelivery(self.thread, client, self._recipe, endpoint, security)

    @property
    def _weights_folder(self) -> Path:
        """Each update replaces the one before."""
        elsewhere, recipe = self._recipe.engine.weights_dir, self._recipe
        return (
            elsewhere / f"{recipe.name}-seed{recipe.seed}-weights"
            if elsewhere
            else self.context.folder.path / "weights"
        )

    def advance(self, tokens: int, *, updated: bool) -> None:
        """Counts one step; `updated`: it changed the policy."""
        self.state.updates += int(updated)
        self.state.step += 1
        self.state.global_step += 1
        self.state.tokens += tokens
        self._show_position()

    async def _checkpoint(self) -> None:
        self.context.show_phase("checkpoint", 0, 1)
        self.state.log_position = self.context.log.position
        await self.thread.compute(self._checkpoints.begin, self.state, self.thread.learner)

    def _enter(self, name: str, steps: int) -> None:
        self.context.progress.stage(name, steps, self.state.step)
        self.context.control.stage, self.context.control.stage_steps = name, steps
        self._show_position()

    def _show_position(self) -> None:
        self.context.control.step, self.context.control.global_step = self.state.step, self.state.global_step

    def _stage(self, name: str) -> Stage:
        return next(stage for stage in self._recipe.stages if stage.name == name)

    def _steps(self, name: str) -> int:
        return 0 if name == "base" else self._recipe.sft.steps if name == "sft" else self._stage(name).steps

    def _rl_steps(self, name: str) -> int:
        names = self._recipe.entries[: self._recipe.entries.index(name) + 1]
        return sum(stage.steps for stage in self._recipe.stages if stage.name in names)
