"""One evaluation from problems to a report in a folder: services, progress, samples, result."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import grpc
import grpc.aio
from rich.console import Console

from rstar_eval.description import REPORT_FILE, SAMPLES_FILE, Description
from rstar_eval.evaluate import evaluate
from rstar_eval.gold_check import check_golds
from rstar_eval.progress import EvaluationProgress
from rstar_eval.report import Report
from rstar_eval.sample_log import SampleLog
from rstar_eval.services import EvalServices, ServiceChoice
from rstar_protos.errors import InfrastructureError, ServiceUnavailableError, UserInputError
from rstar_rollout.client import RolloutClient
from rstar_rollout.engines.base import EngineNotReadyError

__all__ = ["PATIENCE_SECONDS", "EvaluationRun"]

PATIENCE_SECONDS = 60.0
"""How long a rollout service may be away before an evaluation is begun."""

_USER_ERRORS = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
)


class EvaluationRun:
    """Evaluates what a description asks for and leaves everything in one folder.

    Args:
        description: name, settings and problems; its policy gives way to the checksum of the weights where the
            rollout service knows one.
        choice: of services.
        folder: receives `evaluation.json`, `samples.jsonl`, `report.json` and `logs/`. One that holds samples
            already is continued.
    """

    def __init__(self, description: Description, choice: ServiceChoice, folder: Path) -> None:
        self._description = description
        self._choice = choice
        self._folder = folder

    async def run(self, console: Console) -> Report:
        """Runs the evaluation.

        Raises:
            UserInputError: the folder holds another evaluation, a gold answer is unusable, or a service refused the
                request.
            InfrastructureError: a service stayed away; calling again continues.
        """
        if self._folder.exists() and not self._folder.is_dir():
            raise UserInputError("--out", str(self._folder), "a folder")
        try:
            console.print("starting services", highlight=False)
            async with EvalServices(self._choice, self._folder / "logs") as services:
                return await self._watched(services, console)
        except EngineNotReadyError as error:
            raise InfrastructureError(f"the rollout service does not generate: {error}") from error
        except grpc.aio.AioRpcError as error:
            text = f"{error.code().name}: {error.details()}"
            if error.code() in _USER_ERRORS:
                raise UserInputError.message(f"a service refused the request: {text}") from error
            raise InfrastructureError(f"a service failed: {text}") from error

    async def _watched(self, services: EvalServices, console: Console) -> Report:
        """Ends the evaluation when an embedded service cannot be restarted."""
        work = asyncio.ensure_future(self._evaluate(services, console))
        failed = asyncio.ensure_future(services.failed())
        try:
            await asyncio.wait({work, failed}, return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                await failed
            return work.result()
        except ServiceUnavailableError:
            if failed.done():
                await failed  # the reason behind: which service, and its last words
            raise
        finally:
            for task in (work, failed):
                task.cancel()
            await asyncio.wait({work, failed})

    async def _evaluate(self, services: EvalServices, console: Console) -> Report:
        verifier = self._description.settings.verifier
        await check_golds(services.reward, self._description.problems, verifier=verifier)
        client = RolloutClient(services.rollout, patience_seconds=PATIENCE_SECONDS)
        state = await client.state()
        checksums = sorted({engine.checksum for engine in state.engines if engine.checksum})
        # The checksum of the weights: a policy stays the same one under another path.
        description = replace(self._description, policy=" ".join(checksums) or self._description.policy)
        settings, total = description.settings, len(description.problems) * description.settings.samples
        with SampleLog(self._folder / SAMPLES_FILE) as log:
            log.check_belongs(description.problems, description.policy, settings.sampling_key)
            done = sum(not sample.lost for sample in log.samples)
        description.write(self._folder)
        with EvaluationProgress(total, console, done=done) as progress:
            report = await evaluate(
                description.problems,
                client,
                services.reward,
                settings,
                progress.add,
                samples_path=self._folder / SAMPLES_FILE,
                name=description.name,
                policy=description.policy,
            )
        report.write(self._folder / REPORT_FILE)
        console.print(f"samples and report are in {self._folder}", highlight=False)
        return report
