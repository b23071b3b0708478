"""Isolation levels: their names, their order, and what each promises."""

from __future__ import annotations

from rstar_protos.errors import UserInputError

__all__ = ["AUTO", "CONTAINER", "FULL", "LEVELS", "LIMITS", "OFF", "PROMISES", "USER", "check_level", "is_at_least"]

AUTO = "auto"
OFF, LIMITS, CONTAINER, USER, FULL = LEVELS = ("off", "limits", "container", "user", "full")
"""From the lowest to the highest."""

PROMISES = {
    FULL: "namespaces and a root of its own, own user id, seccomp, Landlock, control groups",
    USER: "user namespace and a root of its own, seccomp, Landlock, resource limits, memory watchdog",
    CONTAINER: "seccomp, Landlock, resource limits, memory watchdog, own user id where possible, sweep",
    LIMITS: "resource limits, memory watchdog, sweep; programs read what the service's user may read",
    OFF: "wall clock and output limits only",
}


def check_level(field: str, name: str, *, auto: bool) -> None:
    """Refuses what is not a level.

    Raises:
        UserInputError: an unknown name.
    """
    accepted = (*((AUTO,) if auto else ()), *reversed(LEVELS))
    if name not in accepted:
        raise UserInputError(field, name, f"one of {', '.join(accepted)}")


def is_at_least(level: str, wanted: str) -> bool:
    """Whether a level promises what another does, or more."""
    return LEVELS.index(level) >= LEVELS.index(wanted)
