"""Limits of one call: what a program may use, and what is kept of its output."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from rstar_protos.errors import UserInputError

__all__ = ["DEFAULT_LIMITS", "MIB", "MOST_LIMITS", "Limits", "limits_given"]

MIB = 1024 * 1024
_MOST_MEMORY_MIB = 2**30  # in bytes it still fits the contract's field


@dataclass(frozen=True)
class Limits:
    """Limits of one call; as part of a request, 0 stands for the service's default."""

    wall_seconds: float = 0.0
    """Time from the start of the program to its end; waiting in the queue does not count."""
    cpu_seconds: float = 0.0
    """CPU time of the program's main process; a child process of the program has its own."""
    memory_bytes: int = 0
    """Memory on top of the bare interpreter's own, over all processes of the call."""
    max_stdout_bytes: int = 0
    """Bytes of standard output kept; the rest is counted and dropped."""
    max_stderr_bytes: int = 0
    """Bytes of standard error kept; the rest is counted and dropped."""

    def checked(self) -> Limits:
        """Itself, when every field is a usable number.

        Raises:
            UserInputError: a negative or not finite field.
        """
        for field in fields(self):
            value = getattr(self, field.name)
            if not 0 <= value < float("inf"):
                raise UserInputError(f"limits.{field.name}", value, "a finite number from 0 (0: the default)")
        return self

    def over(self, defaults: Limits, ceiling: Limits) -> Limits:
        """These limits with zeros taken from `defaults`, and none above `ceiling` (0 there: no ceiling)."""
        merged = {}
        for field in fields(self):
            value = getattr(self, field.name) or getattr(defaults, field.name)
            top = getattr(ceiling, field.name)
            merged[field.name] = min(value, top) if top else value
        return replace(self, **merged)


def limits_given(seconds: float, memory_mib: float, *, seconds_field: str, memory_field: str) -> Limits:
    """Limits of time and memory as a user gives them; 0: the service's default.

    Args:
        seconds: of the wall clock.
        memory_mib: MiB.
        seconds_field: what the user knows the first by (`--timeout`), for errors.
        memory_field: what the user knows the second by.

    Raises:
        UserInputError: one of them is negative, not finite, or memory that no request can hold.
    """
    if not 0 <= seconds < float("inf"):
        raise UserInputError(seconds_field, seconds, "a finite number of seconds from 0 (0: the default)")
    if not 0 <= memory_mib <= _MOST_MEMORY_MIB:
        raise UserInputError(memory_field, memory_mib, f"a number from 0 to {_MOST_MEMORY_MIB} (0: the default)")
    return Limits(wall_seconds=seconds, memory_bytes=int(memory_mib * MIB))


DEFAULT_LIMITS = Limits(
    wall_seconds=10.0,
    cpu_seconds=10.0,
    memory_bytes=1024 * MIB,
    max_stdout_bytes=64 * 1024,
    max_stderr_bytes=64 * 1024,
)

MOST_LIMITS = Limits(
    wall_seconds=600.0,
    cpu_seconds=600.0,
    memory_bytes=8 * 1024 * MIB,
    max_stdout_bytes=16 * MIB,
    max_stderr_bytes=16 * MIB,
)
"""What a service gives at most, by default; requests for more get this."""
