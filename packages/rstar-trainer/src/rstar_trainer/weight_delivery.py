"""How the learner's weights come to the engines: through a folder, or sent by vLLM's transfer API.

Either way an engine has them only when it has checked them. What was delivered to engines that have gone since is
delivered anew to those that took their place: from the folder, or by the learner, which holds that version until its
next update.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from rstar_model.weights import WeightManifest
from rstar_protos.errors import ServiceUnavailableError
from rstar_protos.service import ClientSecurity
from rstar_rollout.client import RolloutClient
from rstar_rollout.engines.base import EngineState
from rstar_trainer.learner_thread import LearnerThread
from rstar_trainer.recipe import Recipe
from rstar_trainer.weight_target import BACKENDS, TransferTarget, UnfitServiceError

__all__ = ["FolderDelivery", "TransferDelivery", "WeightDelivery", "check_engines"]

_START_SECONDS = 600.0
_POLL_SECONDS = 1.0


class WeightDelivery(Protocol):
    """Brings weights to the engines of the rollout service."""

    async def deliver(self, version: int, generation: int) -> str:
        """Brings the learner's parameters, as they are now, to all engines; returns their checksum.

        Args:
            version: of the parameters; two deliveries of one version are of equal ones.
            generation: of the service, which counts its restarts.

        Raises:
            WeightUpdateError, EngineNotReadyError, ServiceUnavailableError: they did not arrive, and may next time.
        """


class FolderDelivery:
    """One folder, which every version replaces.

    Args:
        thread: holds the learner.
        client: to the service, which can read the folder.
        folder: to write.
    """

    def __init__(self, thread: LearnerThread, client: RolloutClient, folder: Path) -> None:
        self._thread, self._client, self._folder = thread, client, folder
        self._manifest: WeightManifest | None = None

    async def deliver(self, version: int, generation: int) -> str:
        """See `WeightDelivery`."""
        if self._manifest is None or self._manifest.version != version:
            self._manifest = await self._thread.compute(self._thread.learner.write_weights, self._folder, version)
        await self._client.update_weights(self._manifest)
        return self._manifest.checksum


class TransferDelivery:
    """Sent by the learner.

    Args:
        thread: holds the learner.
        client: to the service.
        recipe: says how.
        endpoint: of the service.
        security: of connections to it.
    """

    def __init__(
        self,
        thread: LearnerThread,
        client: RolloutClient,
        recipe: Recipe,
        endpoint: str,
        security: ClientSecurity | None,
    ) -> None:
        self._thread, self._client, self._recipe = thread, client, recipe
        self._endpoint, self._security = endpoint, security or ClientSecurity()

    async def deliver(self, version: int, generation: int) -> str:
        """See `WeightDelivery`."""
        target = TransferTarget(
            transfer=self._recipe.engine.transfer,
            endpoint=self._endpoint,
            security=self._security,
            workers=await self._workers(),
            generation=generation,
            seconds=self._recipe.learner.patience_seconds,
        )
        manifest = await self._thread.compute(self._thread.learner.send_weights, target, version)
        return manifest.checksum

    async def _workers(self) -> int:
        """Of all engines that can receive; one that is started again, with no other there, is waited for.

        Raises:
            ServiceUnavailableError: none came.
        """
        give_up = time.monotonic() + _START_SECONDS
        while True:
            engines = (await self._client.state()).engines
            workers = sum(engine.workers for engine in engines)
            if workers:
                return workers
            if time.monotonic() > give_up:
                raise ServiceUnavailableError(f"no engine can receive weights: {_reasons(engines)}")
            await asyncio.sleep(_POLL_SECONDS)


async def check_engines(recipe: Recipe, client: RolloutClient) -> None:
    """Compares what a rollout service was started for with what the recipe asks of it.

    Raises:
        UnfitServiceError: naming the field, the value and how the service has to be started.
    """
    settings = recipe.engine
    for engine in (await client.state()).engines:
        if not engine.workers:
            continue  # it is being started again, from what the others were started from
        if settings.transfer != "files" and engine.transfer_backend != BACKENDS[settings.transfer]:
            wanted = BACKENDS[settings.transfer]
            found = engine.transfer_backend or "files alone"
            raise UnfitServiceError(
                "engine.transfer",
                settings.transfer,
                f"a rollout service started with --transfer-backend {wanted}; engine {engine.engine_id} of the one at "
                f"services.rollout.endpoint takes {found}",
            )
        if settings.sleep_level and not engine.sleeps:
            raise UnfitServiceError(
                "engine.sleep_level",
                settings.sleep_level,
                f"a rollout service whose engines can sleep (vLLM: started with --sleep-level); {engine.engine_id} of "
                "the one at services.rollout.endpoint cannot",
            )


def _reasons(engines: Iterable[EngineState]) -> str:
    return (
        "; ".join(f"{engine.engine_id}: {engine.held_out}" for engine in engines if engine.held_out) or "none is left"
    )
