"""The seam between what serves programs and what runs them.

Whatever faces clients (SandboxService, a dispatcher's worker node, HTTP) uses these protocols only; `WorkerPool` and
`SessionTable` implement them on this machine, and a dispatcher can implement them over worker nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from rstar_sandbox.limits import Limits
from rstar_sandbox.messages import Job, Outcome
from rstar_sandbox.settings import SandboxSettings

__all__ = ["Counters", "Executor", "IsolationError", "Placed", "Sessions", "SlotLostError"]


class SlotLostError(Exception):
    """The slot died under a job; `alone` when the zygote lived on."""

    def __init__(self, alone: bool) -> None:
        super().__init__("a sandbox slot was lost")
        self.alone = alone


class IsolationError(Exception):
    """The isolation level that was required cannot be had on this machine; nothing may run."""


@dataclass(frozen=True)
class Placed:
    """An outcome and how long its job waited for a slot."""

    outcome: Outcome
    queue_seconds: float


@dataclass
class Counters:
    """What happened since the start; each only grows."""

    slots_lost: int = 0
    """Slots that died and were replaced."""
    zygote_restarts: int = 0
    retries: int = 0
    """Times a program was run again because its slot was lost."""
    forked_ahead: int = 0
    """Calls whose child was ready when they came."""
    forked_late: int = 0
    """Calls that waited for their child to be forked."""
    leaked_processes: int = 0
    """Processes that programs left behind, found and killed."""


class Executor(Protocol):
    """Runs single programs."""

    @property
    def settings(self) -> SandboxSettings:
        """How programs run."""

    @property
    def level(self) -> str:
        """The isolation level in force; it is also in each outcome."""

    @property
    def counters(self) -> Counters:
        """What happened so far."""

    @property
    def running(self) -> int:
        """Programs that run now."""

    @property
    def queued(self) -> int:
        """Programs that wait for a slot."""

    def start(self) -> None:
        """Starts what runs in the background; jobs wait until the first slots are there."""

    async def ready(self) -> None:
        """Returns when programs can run.

        Raises:
            IsolationError: the required isolation cannot be had.
        """

    async def stop(self) -> None:
        """Ends everything; jobs that run or wait are answered as unavailable."""

    async def run(self, job: Job) -> Placed:
        """Runs one job to its outcome; waits for a slot, however many wait already.

        Cancelling the awaiting task kills the program and frees its slot.

        Args:
            job: with complete limits.
        """


class Sessions(Protocol):
    """Runs the cells of sessions."""

    async def open(self, limits: Limits, ttl_seconds: float) -> str:
        """Opens a session and returns its id; `ttl_seconds` 0 stands for the service's default."""

    def limits_of(self, session_id: str) -> Limits:
        """The limits that a session's cells have unless they ask for others."""

    async def run_cell(self, session_id: str, job: Job) -> Placed:
        """Runs one cell; cells of a session run one after the other."""

    def close(self, session_id: str, reason: str = "closed by the client") -> None:
        """Closes a session; closing it again is harmless."""

    def close_all(self) -> None:
        """Closes every session."""
