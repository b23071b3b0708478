"""The services a run is composed of: embedded children or servers elsewhere, behind the same clients.

`Services` starts what is embedded, watches it, and gives out channels. A child that dies is restarted on its socket by
`EmbeddedService`; when one cannot be restarted, `watch` ends what is running with the reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import grpc.aio

from rstar_protos.errors import ServiceUnavailableError
from rstar_protos.service import ClientSecurity, EmbeddedGroup, read_token
from rstar_trainer.allocator import ALLOCATOR_ENVIRONMENT
from rstar_trainer.recipe import Recipe, ServiceEndpoint
from rstar_trainer.weight_target import BACKENDS

__all__ = ["Services"]

Result = TypeVar("Result")


class Services:
    """Sandbox, reward, sampling and rollout services of one run.

    Args:
        recipe: says which are embedded and how to reach the others.
        model_dir: Hugging Face folder that an embedded rollout service loads first.
        log_dir: folder for the logs of embedded services.
        on_event: told of restarts, in one line each; called on the event loop.
    """

    def __init__(self, recipe: Recipe, model_dir: Path, log_dir: Path, on_event: Callable[[str], None]) -> None:
        self._recipe = recipe
        self._model_dir = model_dir
        self._on_event = on_event
        self._group = EmbeddedGroup(log_dir, self._restarted)
        self._endpoints: dict[str, str] = {}
        self._channels: dict[str, grpc.aio.Channel] = {}
        self.rollout_generation = 0
        """Counts the starts of the rollout service: after a new one, weights have to be sent again."""

    async def __aenter__(self) -> Services:
        # Programs that draw random numbers without a seed would otherwise differ from run to run.
        seed = ("--seed", "0") if self._recipe.engine.deterministic else ()
        self._prepare("sandbox", "rstar_sandbox", "serve", *seed)
        self._prepare("reward", "rstar_reward", "serve")
        self._prepare("sampling", "rstar_rollout", "serve-sampling")
        # Only now is the sandbox's socket known, which the rollout service is told.
        self._prepare("rollout", "rstar_rollout", "serve", *self._rollout_arguments())
        try:
            await self._group.start()
            for name, endpoint in self._endpoints.items():
                self._channels[name] = self._group.open(endpoint, self.security(name))
        except BaseException:
            await self._group.close()
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._group.close()

    def channel(self, name: str) -> grpc.aio.Channel:
        """The channel to "sandbox", "reward", "sampling" or "rollout"."""
        return self._channels[name]

    def endpoint(self, name: str) -> str:
        """Where a service is; of an embedded one the same after every restart."""
        return self._endpoints[name]

    def pid(self, name: str) -> int | None:
        """Process id of an embedded service, None when it runs elsewhere."""
        return self._group.pids.get(name)

    def pids(self) -> dict[str, int]:
        """Process ids of the embedded services."""
        return self._group.pids

    async def watch(self, work: Awaitable[Result]) -> Result:
        """Awaits `work`, but ends it as soon as a service is given up.

        Raises:
            ServiceUnavailableError: a service could not be restarted, hung or refused; says which and why.
        """
        task = asyncio.ensure_future(work)
        failed = asyncio.ensure_future(self._group.failed())
        try:
            waited: list[asyncio.Future[Any]] = [task, failed]
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            return task.result() if task.done() else failed.result()
        except (ServiceUnavailableError, grpc.aio.AioRpcError) as error:
            if self._group.failure is not None:
                raise ServiceUnavailableError(self._group.failure) from error
            if isinstance(error, grpc.aio.AioRpcError):
                # A service that hangs or refuses is a fault of the infrastructure, told in one line.
                raise ServiceUnavailableError(f"{error.code().name}: {error.details()}") from error
            raise
        finally:
            task.cancel()
            failed.cancel()
            await asyncio.gather(task, failed, return_exceptions=True)

    def _prepare(self, name: str, *command: str) -> None:
        endpoint: ServiceEndpoint = getattr(self._recipe.services, name)
        if endpoint.embedded:
            environment = self._rollout_environment() if name == "rollout" else None
            self._endpoints[name] = self._group.add(name, command, env=environment)
        else:
            self._endpoints[name] = endpoint.endpoint

    def _rollout_environment(self) -> dict[str, str]:
        engine, environment = self._recipe.engine, dict(ALLOCATOR_ENVIRONMENT)
        if engine.transfer == "ipc":
            # Handles of device memory come pickled, from this process over a private socket.
            environment["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"
        if engine.gpu is not None:
            # CUDA reads the first, ROCm the second (and the first as well).
            environment |= {"CUDA_VISIBLE_DEVICES": str(engine.gpu), "HIP_VISIBLE_DEVICES": str(engine.gpu)}
        return environment

    def _rollout_arguments(self) -> list[str]:
        recipe, engine = self._recipe, self._recipe.engine
        sandbox = recipe.services.sandbox
        return [
            *("--model", str(self._model_dir)),
            *("--engine", engine.type),
            *("--dtype", engine.dtype),
            *("--chat-format", recipe.model.chat_format),
            *("--max-batch", str(engine.max_batch)),
            *("--max-model-tokens", str(engine.max_model_len)),
            *("--kv-gib", str(engine.kv_cache_gib)),
            *(("--threads", str(recipe.model.threads)) if recipe.model.threads else ()),
            *(() if engine.transfer == "files" else ("--transfer-backend", BACKENDS[engine.transfer])),
            *(("--sleep-level", str(engine.sleep_level)) if engine.sleep_level and engine.type == "vllm" else ()),
            "--deterministic" if engine.deterministic and engine.type == "transformers" else "--no-deterministic",
            *("--sandbox", self._endpoints["sandbox"]),
            *ClientSecurity(sandbox.ca, sandbox.certificate, sandbox.private_key).as_options(
                "--sandbox", sandbox.token_file
            ),
        ]

    def security(self, name: str) -> ClientSecurity | None:
        """Of connections to a service; None: those to an embedded one need none."""
        settings: ServiceEndpoint = getattr(self._recipe.services, name)
        if settings.embedded:
            return None
        token = read_token(settings.token_file, f"services.{name}.token_file")
        return ClientSecurity(settings.ca, settings.certificate, settings.private_key, token)

    def _restarted(self, name: str, count: int) -> None:
        if name == "rollout":
            self.rollout_generation += 1
        self._on_event(f"the {name} service died and was restarted (restart {count})")
