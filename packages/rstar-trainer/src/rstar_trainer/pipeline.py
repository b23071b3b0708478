"""The pipeline: base evaluation, SFT, then the RL stages, each followed by its evaluation and a checkpoint.

`run` starts one, `resume` continues one from its last checkpoint. This file holds the order of things; how each
is done is in its own file: sft.py, rl_step.py, learner.py, hard_filter.py, evaluation.py, checkpoint.py.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import tempfile
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from rstar_eval.gold_check import UnusableGoldError, check_golds
from rstar_model.chat_format import ChatFormat
from rstar_model.tokenizer import Tokenizer, load_tokenizer
from rstar_protos.service import ServeSettings, start_server
from rstar_protos.trainer.v1 import trainer_pb2, trainer_pb2_grpc
from rstar_rollout.client import RolloutClient
from rstar_trainer.checkpoint import CheckpointWriter, RunState, latest_checkpoint, read_checkpoint
from rstar_trainer.data import HeldoutProblems, TrainProblem, fingerprint, load_heldout_problems, load_training_problems
from rstar_trainer.entries import EntryRunner, StoppedEarly
from rstar_trainer.learner_faults import LearnerLosses, LearnerLostError
from rstar_trainer.learner_thread import LearnerThread
from rstar_trainer.metrics_log import MetricsLog
from rstar_trainer.model_source import ResolvedModel, resolve_model
from rstar_trainer.preflight import check_files
from rstar_trainer.progress import Progress
from rstar_trainer.recipe import Recipe
from rstar_trainer.report import RunReport
from rstar_trainer.run_context import RunContext
from rstar_trainer.run_folder import RunFolder
from rstar_trainer.run_identity import Acceptable, RunIdentity, check_identity, file_fingerprint, package_versions
from rstar_trainer.service import RunControl, TrainerServicer
from rstar_trainer.services import Services
from rstar_trainer.sft import read_demonstrations
from rstar_trainer.transfer_machine import check_machine
from rstar_trainer.weight_delivery import check_engines
from rstar_trainer.weight_target import UnfitServiceError

__all__ = ["resume", "run"]


def run(recipe: Recipe, progress: Progress) -> Path:
    """Runs a recipe from its beginning.

    Args:
        recipe: checked.
        progress: entered by the caller.

    Returns:
        The run folder.

    Raises:
        UserInputError: something in the recipe, the data or the model folder is unusable.
        ServiceUnavailableError: a service could not be kept alive; the run can be resumed.
    """
    # All input is read before the folder is made, so that a mended recipe can use it.
    inputs = _read_inputs(recipe)
    folder = RunFolder.create(recipe)
    with folder.lock():
        try:
            asyncio.run(_run(recipe, folder, inputs, None, progress))
        except (UnusableGoldError, UnfitServiceError):  # input too, which takes a service to read
            folder.withdraw()
            raise
    return folder.path


def resume(run_dir: Path, progress: Progress, accepted: Collection[Acceptable] = ()) -> Path:
    """Continues a run from its last checkpoint, or from its beginning when it has none.

    Args:
        run_dir: of the run.
        progress: entered by the caller.
        accepted: what may differ from the checkpoint.

    Raises:
        UserInputError: no run in the folder, a trainer at work there, or changed data, recipe or packages.
        ServiceUnavailableError: as `run`.
    """
    folder, recipe = RunFolder.open(run_dir)
    if recipe.run_path.resolve() != run_dir.resolve():
        recipe = recipe.model_copy(update={"run_dir": str(run_dir)})
    inputs = _read_inputs(recipe)
    with folder.lock():
        asyncio.run(_run(recipe, folder, inputs, latest_checkpoint(run_dir), progress, accepted))
    return folder.path


@dataclass(frozen=True)
class _Inputs:
    """What a recipe names, read."""

    problems: list[TrainProblem]
    heldout: HeldoutProblems
    model: ResolvedModel
    tokenizer: Tokenizer

    def identity(self, recipe: Recipe) -> RunIdentity:
        """What a checkpoint of this run remembers it by."""
        data = {"data.train": fingerprint(self.problems), "data.heldout": fingerprint(self.heldout.problems)}
        if recipe.sft.enabled and recipe.sft.path is not None:
            data["sft.path"] = file_fingerprint(recipe.sft.path)
        return RunIdentity(recipe.model_dump(mode="json"), package_versions(), data)


def _read_inputs(recipe: Recipe) -> _Inputs:
    """Everything that the recipe names; the model is fetched if need be. Later users may rely on its being readable."""
    check_files(recipe)
    check_machine(recipe)
    problems, heldout = load_training_problems(recipe), load_heldout_problems(recipe)
    ChatFormat.load(recipe.model.chat_format)
    if recipe.sft.enabled and recipe.sft.path is not None:
        read_demonstrations(recipe.sft.path, recipe.sft.examples)
    model = resolve_model(recipe.model.source)
    return _Inputs(problems, heldout, model, load_tokenizer(model.path))


async def _run(
    recipe: Recipe,
    folder: RunFolder,
    inputs: _Inputs,
    checkpoint: Path | None,
    progress: Progress,
    accepted: Collection[Acceptable] = (),
) -> None:
    model = inputs.model
    progress.message(f"run folder {folder.path}, seed {recipe.seed}")
    progress.message(f"model {recipe.model.source} from {model.source}")
    folder.add_facts(model={"name": recipe.model.source, "source": model.source, "sha256": dict(model.sha256)})
    identity = inputs.identity(recipe)
    state = RunState()
    changes: dict[Acceptable, list[str]] = {}
    if checkpoint is not None:
        state, before = read_checkpoint(checkpoint)
        changes = check_identity(before, identity, accepted, folder.path)
        if "data" in changes:
            state.forget_data()
    with MetricsLog(folder.path) as log:
        log.truncate(state.global_step, state.log_position)
        context = RunContext(
            recipe=recipe,
            folder=folder,
            problems=inputs.problems,
            heldout=inputs.heldout,
            log=log,
            report=_open_report(folder.path, recipe, state, resumed=checkpoint is not None),
            progress=progress,
            control=RunControl(f"{recipe.name}-seed{recipe.seed}", folder.path),
        )
        async with (
            _services(context, model.path) as services,
            LearnerThread(recipe, model.path) as thread,
        ):
            # Left before the learner: the last checkpoint is complete when the run ends, however it ends.
            with CheckpointWriter(folder.path, identity, recipe.checkpoint.keep) as checkpoints:
                for kind, texts in changes.items():
                    context.event(f"accepted changes of {kind}: {'; '.join(texts)}")
                losses = LearnerLosses(recipe.learner.restarts)
                async with _trainer_service(context):
                    while True:
                        runner = EntryRunner(context, thread, inputs.tokenizer, services, checkpoints)
                        try:
                            if checkpoint is not None:
                                await runner.load(checkpoint, state)
                                context.event(f"resumed after step {state.global_step} from {checkpoint}")
                            await services.watch(runner.run_all(state))
                        except StoppedEarly:
                            context.event(f"stopped; continue with `rstar-trainer resume {folder.path}`")
                        except LearnerLostError as error:
                            losses.count(error, state.global_step)
                            context, checkpoint, state = await _step_back(context, thread, checkpoints, error)
                            continue
                        break


@asynccontextmanager
async def _services(context: RunContext, model_dir: Path) -> AsyncIterator[Services]:
    """The services of a run, entered when they fit the recipe and the reward service has read every gold answer.

    Raises:
        UnfitServiceError: the rollout service was started for something else.
        UnusableGoldError: the reward service cannot read one.
    """
    recipe, heldout = context.recipe, context.heldout
    problems = [*context.problems, *heldout.problems, *(p for unseen in heldout.unseen.values() for p in unseen)]
    async with Services(recipe, model_dir, context.folder.path / "logs", context.event) as services:
        await services.watch(check_engines(recipe, RolloutClient(services.channel("rollout"))))
        checking = check_golds(
            services.channel("reward"),
            [problem.as_eval() for problem in problems],
            on_checked=lambda done, total: context.show_phase("gold answers", done, total),
        )
        await services.watch(checking)
        yield services


async def _step_back(
    context: RunContext, thread: LearnerThread, checkpoints: CheckpointWriter, error: LearnerLostError
) -> tuple[RunContext, Path | None, RunState]:
    """Another learner, and the run as it was at its last checkpoint, or at its beginning when it has none."""
    context.progress.message(f"{error}; going back to the last checkpoint")
    await asyncio.to_thread(checkpoints.wait)
    checkpoint = latest_checkpoint(context.folder.path)
    state = read_checkpoint(checkpoint)[0] if checkpoint is not None else RunState()
    await thread.replace()
    context.log.truncate(state.global_step, state.log_position)
    report = _open_report(context.folder.path, context.recipe, state, resumed=checkpoint is not None)
    context = dataclasses.replace(context, report=report)
    context.control.global_step = state.global_step
    context.event(f"{error}; a new learner takes its place")
    return context, checkpoint, state


def _open_report(run_dir: Path, recipe: Recipe, state: RunState, *, resumed: bool) -> RunReport:
    if not resumed:
        return RunReport.start(run_dir, recipe)
    report = RunReport.read(run_dir)
    report.keep_entries(recipe.entries[: state.entry])
    return report


@asynccontextmanager
async def _trainer_service(context: RunContext) -> AsyncIterator[None]:
    """The TrainerService on a private socket, for as long as the run goes on."""
    servicer = TrainerServicer(context.control, context.log)
    with tempfile.TemporaryDirectory(prefix="rstar-") as private:
        server = await start_server(
            ServeSettings(listen=f"unix:{private}/trainer.sock"),
            lambda server: trainer_pb2_grpc.add_TrainerServiceServicer_to_server(servicer, server),
            [trainer_pb2.DESCRIPTOR],
        )
        context.folder.publish(server.listening, os.getpid())
        try:
            yield
        finally:
            context.folder.unpublish()
            # Followers of the metrics stream are told the end before the socket goes.
            context.log.close()
            await server.stop(1.0)
