"""What Typer finds wrong with the arguments of a command, as the one-line error that all other bad input gets.

Typer draws a box around such errors. Which library its exceptions come from, and which one converts values, depends
on its version: click; or its own copy of click, and pydantic. So exceptions are told by what they carry, and what is
accepted is read from their messages. This package needs none of these libraries.
"""

from __future__ import annotations

import re
from typing import Any, Protocol, runtime_checkable

from rstar_protos.errors import UserInputError

__all__ = ["UsageError", "input_error"]

_KINDS = {
    "valid integer": "a whole number",
    "valid integer range": "a whole number",
    "valid float": "a number",
    "valid float range": "a number",
    "valid number": "a number",
    "valid boolean": "true or false",
}
# click: "'x' is not a valid float.", "0 is not in the range x>=1.", "'x' is not one of 'a', 'b'."
_IS_NOT = re.compile(
    r"(Value error, )?(?P<quote>['\"]?)(?P<value>.*?)(?P=quote) is not "
    r"(a (?P<kind>valid [\w ]+)|in the range (?P<range>.+?)|one of (?P<choices>.+?))\.?",
    re.DOTALL,
)
# pydantic: "Input should be a valid number, unable to parse string as a number"
_SHOULD_BE = re.compile(r"Input should be (a (?P<kind>valid \w+)|(?P<other>[^,]+)).*", re.DOTALL)


@runtime_checkable
class UsageError(Protocol):
    """The errors with which Typer ends a command by itself."""

    exit_code: int

    def format_message(self) -> str:
        """The message without the usage lines around it."""


def input_error(error: UsageError) -> UserInputError:
    """The same error with the option or argument, its value, and what would be accepted."""
    context: Any = getattr(error, "ctx", None)
    listed = f"what `{context.command_path} --help` lists" if context is not None else "what --help lists"
    names = {kind.__name__ for kind in type(error).__mro__}
    option: str | None = getattr(error, "option_name", None)
    if "NoSuchOption" in names:
        alike = sorted(getattr(error, "possibilities", None) or ())
        return UserInputError.message(
            f"{option}: no such option; accepted: {listed}" + (f", such as {' or '.join(alike)}" if alike else "")
        )
    if "BadOptionUsage" in names and option:
        return UserInputError.message(f"{option}: its value is missing; accepted: a value after it")
    parameter: Any = getattr(error, "param", None)
    if parameter is None:
        message = error.format_message().rstrip(".")
        return UserInputError.message(f"{message[:1].lower()}{message[1:]}; accepted: {listed}")
    name = _name(parameter)
    meaning = (getattr(parameter, "help", None) or "a value").rstrip(".")
    if "MissingParameter" in names:
        return UserInputError.message(f"{name}: missing; accepted: {meaning}")
    return _bad_value(error, name, meaning)


def _bad_value(error: UsageError, name: str, meaning: str) -> UserInputError:
    message = str(getattr(error, "message", "") or error.format_message())
    refused, wanted = _IS_NOT.fullmatch(message), _SHOULD_BE.fullmatch(message)
    if refused is not None:
        value: object = refused["value"]
        if refused["kind"]:
            accepted = _KINDS.get(refused["kind"], f"a {refused['kind']}")
        elif refused["range"]:
            accepted = f"a number in the range {refused['range']}"
        else:
            accepted = f"one of {refused['choices']}".replace("'", "")
    elif wanted is not None:
        value = _pydantic_input(error)
        other = f"a number {wanted['other']}" if wanted["other"] else f"a {wanted['kind']}"
        accepted = _KINDS.get(wanted["kind"] or "", other)
    else:
        return UserInputError.message(f"{name}: {message.rstrip('.')}; accepted: {meaning}")
    return UserInputError(name, value, accepted)


def _pydantic_input(error: Any) -> object:
    """The value that pydantic refused, which its messages leave out."""
    try:
        return (error.__cause__ or error.__context__).errors()[0]["input"]
    except (AttributeError, LookupError):
        return "..."


def _name(parameter: Any) -> str:
    """As the user writes it: the long form of an option, or the argument as the usage line has it."""
    if parameter.param_type_name == "option":
        return str(max(parameter.opts, key=len))
    return str(parameter.metavar or parameter.name.upper()).strip("[].")
