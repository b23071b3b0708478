"""Settings of a sandbox service."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from rstar_protos.errors import UserInputError
from rstar_sandbox.levels import check_level
from rstar_sandbox.limits import DEFAULT_LIMITS, MOST_LIMITS, Limits

__all__ = ["SandboxSettings"]


def _default_slots() -> int:
    return 2 * len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class SandboxSettings:
    """How a sandbox service runs programs."""

    slots: int = field(default_factory=_default_slots)
    """Programs that run at the same time; the default is twice the number of cores."""
    defaults: Limits = DEFAULT_LIMITS
    """Limits of requests that leave them at 0."""
    ceiling: Limits = MOST_LIMITS
    """What a request gets at most, whatever it asks for."""
    warm: tuple[str, ...] = ("numpy", "scipy", "sympy")
    """Modules imported before programs are forked; those that are not installed are passed over."""
    isolation: str = "auto"
    """The level to run at: "auto" for the highest that works here, or "full", "user", "container", "limits", "off"."""
    require_level: str | None = None
    """The lowest level that will do; where it cannot be had nothing runs. None: whatever there is."""
    folder: Path = field(default_factory=lambda: Path(tempfile.gettempdir()))
    """Where the working directories of programs are made."""
    scratch_bytes: int = 256 * 1024**2
    """What the files of a call, or of a session, may take up."""
    scratch_files: int = 16384
    """How many files and folders they may be."""
    seed: int | None = None
    """Makes results a function of the program: `random` and NumPy's global generator are seeded by it, and object
    addresses in output are renumbered. None: fresh random numbers for each call, output as it is."""
    max_sessions: int = 16
    session_seconds: float = 600.0
    """Idle time after which a session is closed, unless it was opened with its own."""
    remembered_results: int = 4096
    """Results kept for retries with the same request id."""
    remembered_bytes: int = 64 * 1024**2
    patience_seconds: float = 120.0
    """How long a program waits for the worker processes to come back before it is answered as unavailable."""

    def checked(self) -> SandboxSettings:
        """Itself, when every field is usable.

        Raises:
            UserInputError: a field that is not.
        """
        if self.slots < 1:
            raise UserInputError("--slots", self.slots, "a whole number from 1")
        if self.max_sessions < 0:
            raise UserInputError("--max-sessions", self.max_sessions, "a whole number from 0")
        if not self.folder.is_dir() or not os.access(self.folder, os.W_OK | os.X_OK):
            raise UserInputError("--work-dir", str(self.folder), "a folder that can be written to")
        if self.scratch_bytes < 4096 or self.scratch_files < 16:
            raise UserInputError("scratch", self.scratch_bytes, "at least 4096 bytes and 16 files")
        check_level("--isolation", self.isolation, auto=True)
        if self.require_level is not None:
            check_level("--require-level", self.require_level, auto=False)
        self.defaults.checked()
        self.ceiling.checked()
        return self
