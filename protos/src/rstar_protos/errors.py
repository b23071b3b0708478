"""The error types that every rstar package shares.

Two families are kept apart on purpose: what the user can mend (`UserInputError`, one line, exit code 2) and what
the infrastructure did (`InfrastructureError`), which never becomes a reward or text that a policy sees.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

__all__ = [
    "InfrastructureError",
    "InterruptedRunError",
    "RStarError",
    "ServiceUnavailableError",
    "UserInputError",
    "known_as",
]


class RStarError(Exception):
    """Base of all errors that rstar packages raise on purpose."""


class UserInputError(RStarError):
    """Input that the user can mend.

    Args:
        field: what was given, by the name the user knows it by (`stages.0.steps`, `--listen`).
        value: the offending value.
        accepted: what would be accepted: a noun phrase that completes "accepted: ..." ("a whole number from 1", "one of
            a, b", "nothing with --role worker"). Why the value is none may stand behind it, in parentheses.
    """

    def __init__(self, field: str, value: object, accepted: str) -> None:
        self.field = field
        self.value = value
        self.accepted = accepted
        super().__init__(f"{field}: {value!r} is not usable; accepted: {accepted}")

    @classmethod
    def message(cls, text: str) -> UserInputError:
        """An error whose sentence does not follow the field / value / accepted pattern."""
        error = cls.__new__(cls)
        error.field, error.value, error.accepted = "", None, ""
        Exception.__init__(error, text)
        return error

    def __reduce__(self) -> tuple[object, ...]:
        return (UserInputError.message, (str(self),))


class InfrastructureError(RStarError):
    """A machine, process or network failed. Never a reward, never model-visible text."""


class ServiceUnavailableError(InfrastructureError):
    """A service did not answer within the caller's patience, or could not be restarted."""


class InterruptedRunError(RStarError):
    """The user interrupted a command that has more to say than that: how to go on with what is kept."""


@contextmanager
def known_as(names: Mapping[str, str]) -> Iterator[None]:
    """Has errors name a field as the user wrote it: an option, a column of a file.

    Args:
        names: from the names that an interface in Python has to those of the user; others stay.
    """
    try:
        yield
    except UserInputError as error:
        if error.field not in names:
            raise
        raise UserInputError(names[error.field], error.value, error.accepted) from error
