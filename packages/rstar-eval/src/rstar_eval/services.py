"""The services behind an evaluation: embedded ones by default, others by their endpoint.

Sandbox and reward are reached by contract only: their packages are named as modules for a child process and
never imported here.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import grpc.aio

from rstar_protos.errors import ServiceUnavailableError, UserInputError
from rstar_protos.service import EMBEDDED, ClientSecurity, EmbeddedService, open_channel

__all__ = ["NO_SANDBOX", "EvalServices", "ServiceChoice"]

NO_SANDBOX = "none"
"""In place of a sandbox endpoint: the policy gets no tools. Understood by `rstar-rollout serve` as well."""


@dataclass(frozen=True)
class ServiceChoice:
    """Which services to use; `embedded` starts one as a child process."""

    sandbox: str = EMBEDDED
    """Used by an embedded rollout service; one that runs elsewhere has its own. `NO_SANDBOX`: none."""
    reward: str = EMBEDDED
    rollout: str = EMBEDDED
    security: ClientSecurity = field(default_factory=ClientSecurity)
    """For the endpoints that are not embedded."""
    token_file: Path | None = None
    """Where the token in `security` came from, for an embedded rollout service."""
    rollout_arguments: tuple[str, ...] = ()
    """Command-line arguments of an embedded rollout service, the model among them."""

    def __post_init__(self) -> None:
        if self.rollout != EMBEDDED and self.sandbox not in (EMBEDDED, NO_SANDBOX):
            raise UserInputError(
                "--sandbox", self.sandbox, "the rollout service given with --rollout has a sandbox of its own"
            )


class EvalServices:
    """The running services of one evaluation; an async context manager.

    Args:
        choice: which.
        log_dir: folder for the logs of embedded ones.
    """

    def __init__(self, choice: ServiceChoice, log_dir: Path) -> None:
        self._choice = choice
        self._log_dir = log_dir
        self._embedded: list[EmbeddedService] = []
        self._channels: list[grpc.aio.Channel] = []
        self._failure: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.rollout: grpc.aio.Channel
        self.reward: grpc.aio.Channel

    async def __aenter__(self) -> EvalServices:
        choice = self._choice
        try:
            reward = self._endpoint("reward", choice.reward, "rstar_reward", ())
            rollout = choice.rollout
            if rollout == EMBEDDED:
                sandbox = self._endpoint("sandbox", choice.sandbox, "rstar_sandbox", ())
                more = ("--sandbox", sandbox, *self._sandbox_credentials())
                rollout = self._endpoint("rollout", EMBEDDED, "rstar_rollout", (*choice.rollout_arguments, *more))
            await asyncio.gather(*(asyncio.to_thread(child.start) for child in self._embedded))
            self.reward = self._open(reward, choice.reward)
            self.rollout = self._open(rollout, choice.rollout)
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._close()

    async def failed(self) -> None:
        """Waits for ever, or until an embedded service is given up.

        Raises:
            ServiceUnavailableError: it could not be restarted; with the reason.
        """
        raise ServiceUnavailableError(await self._failure)

    def _endpoint(self, name: str, endpoint: str, module: str, arguments: tuple[str, ...]) -> str:
        if endpoint != EMBEDDED:
            return endpoint
        if find_spec(module) is None:
            raise UserInputError(
                f"--{name}", endpoint, f"install rstar-eval[embedded], or give the endpoint of a running {name} service"
            )
        loop = asyncio.get_running_loop()

        def tell(reason: str) -> None:
            loop.call_soon_threadsafe(self._give_up, reason)  # from the child's monitor thread

        child = EmbeddedService(
            name,
            [sys.executable, "-m", module, "serve", *arguments],
            log_path=self._log_dir / f"{name}.log",
            on_failure=tell,
        )
        self._embedded.append(child)
        return child.endpoint

    def _sandbox_credentials(self) -> list[str]:
        """How an embedded rollout service proves itself to a sandbox elsewhere."""
        if self._choice.sandbox in (EMBEDDED, NO_SANDBOX):
            return []
        security = self._choice.security
        options = {
            "--sandbox-ca": security.ca,
            "--sandbox-cert": security.certificate,
            "--sandbox-key": security.private_key,
            "--sandbox-token-file": self._choice.token_file,
        }
        return [text for option, path in options.items() if path is not None for text in (option, str(path))]

    def _give_up(self, reason: str) -> None:
        if not self._failure.done():
            self._failure.set_result(reason)

    def _open(self, endpoint: str, chosen: str) -> grpc.aio.Channel:
        channel = open_channel(endpoint, None if chosen == EMBEDDED else self._choice.security)
        self._channels.append(channel)
        return channel

    async def _close(self) -> None:
        for channel in self._channels:
            await channel.close()
        await asyncio.gather(*(asyncio.to_thread(child.stop) for child in self._embedded))
