"""The services behind an evaluation: embedded ones by default, others by their endpoint.

Sandbox and reward are reached by contract only: their packages are named as modules for a child process and
never imported here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import grpc.aio

from rstar_protos.errors import UserInputError, known_as
from rstar_protos.service import EMBEDDED, ClientSecurity, EmbeddedGroup

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
                "--sandbox", self.sandbox, "nothing: the service given with --rollout has a sandbox of its own"
            )


class EvalServices:
    """The running services of one evaluation; an async context manager.

    Args:
        choice: which.
        log_dir: folder for the logs of embedded ones.
    """

    def __init__(self, choice: ServiceChoice, log_dir: Path) -> None:
        self._choice = choice
        self._group = EmbeddedGroup(log_dir)
        self.rollout: grpc.aio.Channel
        self.reward: grpc.aio.Channel

    async def __aenter__(self) -> EvalServices:
        choice = self._choice
        try:
            reward = self._endpoint("reward", choice.reward, "rstar_reward")
            rollout = choice.rollout
            if rollout == EMBEDDED:
                sandbox = self._endpoint("sandbox", choice.sandbox, "rstar_sandbox")
                more = ("--sandbox", sandbox, *self._sandbox_credentials())
                rollout = self._endpoint("rollout", EMBEDDED, "rstar_rollout", *choice.rollout_arguments, *more)
            await self._group.start()
            with known_as({"endpoint": "--reward"}):
                self.reward = self._open(reward, choice.reward)
            with known_as({"endpoint": "--rollout"}):
                self.rollout = self._open(rollout, choice.rollout)
        except BaseException:
            await self._group.close()
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self._group.close()

    async def failed(self) -> None:
        """Waits for ever, or until an embedded service is given up.

        Raises:
            ServiceUnavailableError: it could not be restarted; with the reason.
        """
        await self._group.failed()

    def _endpoint(self, name: str, endpoint: str, module: str, *arguments: str) -> str:
        if endpoint != EMBEDDED:
            return endpoint
        if find_spec(module) is None:
            accepted = f"the endpoint of a running {name} service, or {endpoint} with rstar-eval[embedded] installed"
            raise UserInputError(f"--{name}", endpoint, accepted)
        return self._group.add(name, [module, "serve", *arguments])

    def _sandbox_credentials(self) -> list[str]:
        """How an embedded rollout service proves itself to a sandbox elsewhere."""
        if self._choice.sandbox in (EMBEDDED, NO_SANDBOX):
            return []
        return self._choice.security.as_options("--sandbox", self._choice.token_file)

    def _open(self, endpoint: str, chosen: str) -> grpc.aio.Channel:
        return self._group.open(endpoint, None if chosen == EMBEDDED else self._choice.security)
