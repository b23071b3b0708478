"""The error types that every rstar package shares.

Two families are kept apart on purpose: what the user can mend (`UserInputError`, one line, exit code 2) and what
the infrastructure did (`InfrastructureError`), which never becomes a reward or text that a policy sees.
"""

from __future__ import annotations

__all__ = ["InfrastructureError", "RStarError", "ServiceUnavailableError", "UserInputError"]


class RStarError(Exception):
    """Base of all errors that rstar packages raise on purpose."""


class UserInputError(RStarError):
    """Input that the user can mend.

    Args:
        field: what was given, by the name the user knows it by (`stages.0.steps`, `--listen`).
        value: the offending value.
        accepted: what would be accepted, as the end of a sentence.
    """

    def __init__(self, field: str, value: object, accepted: str) -> None:
        self.field = field
        self.value = value
        self.accepted = accepted
        super().__init__(f"{field}: {value!r} is not usable; {accepted}")

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
