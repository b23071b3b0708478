"""The services a run is composed of: embedded children or servers elsewhere, behind the same clients.

`Services` starts what is embedded, watches it, and gives out channels. A child that dies is restarted on its socket by
`EmbeddedService`; when one cannot be restarted, `watch` ends what is running with the reason.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import grpc.aio

from rstar_protos.errors import ServiceUnavailableError
from rstar_protos.service import ClientSecurity, EmbeddedService, open_channel, read_token
from rstar_trainer.allocator import ALLOCATOR_ENVIRONMENT
from rstar_trainer.recipe import Recipe, ServiceEndpoint

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
        self._log_dir = log_dir
        self._on_event = on_event
        self._embedded: dict[str, EmbeddedService] = {}
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._loop = asyncio.get_running_loop()
        self._failure: asyncio.Future[str] = self._loop.create_future()
        self.rollout_generation = 0
        """Counts the starts of the rollout service: after a new one, weights have to be sent again."""

    async def __aenter__(self) -> Services:
        recipe, endpoints = self._recipe, self._recipe.services
        commands = {
            # Programs that draw random numbers without a seed would otherwise differ from run to run.
            "sandbox": ["rstar_sandbox", "serve", *(("--seed", "0") if recipe.engine.deterministic else ())],
            "reward": ["rstar_reward", "serve"],
            "sampling": ["rstar_rollout", "serve-sampling"],
        }
        for name, command in commands.items():
            self._prepare(name, getattr(endpoints, name), command)
        # Only now is the sandbox's socket known, which the rollout service is told.
        self._prepare("rollout", endpoints.rollout, ["rstar_rollout", "serve", *self._rollout_arguments()])
        try:
            await asyncio.gather(*(asyncio.to_thread(child.start) for child in self._embedded.values()))
            for name in ("sandbox", "reward", "sampling", "rollout"):
                self._channels[name] = self._open(name)
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._close()

    def channel(self, name: str) -> grpc.aio.Channel:
        """The channel to "sandbox", "reward", "sampling" or "rollout"."""
        return self._channels[name]

    def pid(self, name: str) -> int | None:
        """Process id of an embedded service, None when it runs elsewhere."""
        child = self._embedded.get(name)
        return child.pid if child else None

    def pids(self) -> dict[str, int]:
        """Process ids of the embedded services."""
        return {name: child.pid for name, child in self._embedded.items() if child.pid}

    async def watch(self, work: Awaitable[Result]) -> Result:
        """Awaits `work`, but ends it as soon as a service is given up.

        Raises:
            ServiceUnavailableError: a service could not be restarted, hung or refused; says which and why.
        """
        task = asyncio.ensure_future(work)
        try:
            waited: list[asyncio.Future[Any]] = [task, self._failure]
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise ServiceUnavailableError(self._failure.result())
            return task.result()
        except (ServiceUnavailableError, grpc.aio.AioRpcError) as error:
            if self._failure.done():
                raise ServiceUnavailableError(self._failure.result()) from error
            if isinstance(error, grpc.aio.AioRpcError):
                # A service that hangs or refuses is a fault of the infrastructure, told in one line.
                raise ServiceUnavailableError(f"{error.code().name}: {error.details()}") from error
            raise
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task})

    def _prepare(self, name: str, endpoint: ServiceEndpoint, command: list[str]) -> None:
        if endpoint.embedded:
            self._embedded[name] = EmbeddedService(
                name,
                [sys.executable, "-m", *command],
                env=ALLOCATOR_ENVIRONMENT if name == "rollout" else None,
                log_path=self._log_dir / f"{name}.log",
                on_restart=lambda count: self._tell(self._restarted, name, count),
                on_failure=lambda reason: self._tell(self._failed, reason),
            )

    def _rollout_arguments(self) -> list[str]:
        recipe, engine = self._recipe, self._recipe.engine
        sandbox = recipe.services.sandbox
        arguments = [
            *("--model", str(self._model_dir)),
            *("--engine", engine.type),
            *("--dtype", engine.dtype),
            *("--chat-format", recipe.model.chat_format),
            *("--max-batch", str(engine.max_batch)),
            *("--max-model-tokens", str(engine.max_model_len)),
            *("--kv-gib", str(engine.kv_cache_gib)),
            *(("--threads", str(recipe.model.threads)) if recipe.model.threads else ()),
            "--deterministic" if engine.deterministic and engine.type == "transformers" else "--no-deterministic",
            *("--sandbox", self._embedded["sandbox"].endpoint if sandbox.embedded else sandbox.endpoint),
        ]
        for option, value in (
            ("--sandbox-ca", sandbox.ca),
            ("--sandbox-cert", sandbox.certificate),
            ("--sandbox-key", sandbox.private_key),
            ("--sandbox-token-file", sandbox.token_file),
        ):
            if value is not None:
                arguments += [option, str(value)]
        return arguments

    def _open(self, name: str) -> grpc.aio.Channel:
        child = self._embedded.get(name)
        if child is not None:
            return open_channel(child.endpoint)
        settings: ServiceEndpoint = getattr(self._recipe.services, name)
        security = ClientSecurity(
            settings.ca,
            settings.certificate,
            settings.private_key,
            read_token(settings.token_file, f"services.{name}.token_file"),
        )
        return open_channel(settings.endpoint, security)

    def _tell(self, handler: Callable[..., None], *arguments: object) -> None:
        """From the monitor thread of a child to the event loop."""
        self._loop.call_soon_threadsafe(handler, *arguments)

    def _restarted(self, name: str, count: int) -> None:
        if name == "rollout":
            self.rollout_generation += 1
        self._on_event(f"the {name} service died and was restarted (restart {count})")

    def _failed(self, reason: str) -> None:
        if not self._failure.done():
            self._failure.set_result(reason)

    async def _close(self) -> None:
        for channel in self._channels.values():
            await channel.close()
        await asyncio.gather(*(asyncio.to_thread(child.stop) for child in self._embedded.values()))
