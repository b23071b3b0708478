"""What a tool looks like to the policy: its name, its purpose and a JSON schema of its arguments; and its limits."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from rstar_protos.errors import UserInputError

__all__ = ["PYTHON_TOOL", "ToolLimits", "ToolSpec"]

_JSON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
    "null": (type(None),),
}
_SIMPLE = ({"type", "properties", "required", "additionalProperties"}, {"type", "description", "title", "default"})
"""Keywords of a schema and of its properties that need no library to check."""
_LONGEST_REASON = 300  # characters; the library quotes the value, which may be the whole argument


@dataclass(frozen=True)
class ToolLimits:
    """What calls of one tool may use at most, on top of the limits of a request. 0: nothing of its own."""

    wall_seconds: float = 0.0
    """Of one call."""
    memory_bytes: int = 0
    """Of one call, for tools that can bound it."""
    max_output_tokens: int = 0
    """Tokens of one response that the policy is shown."""
    max_concurrent: int = 0
    """Calls in flight at once."""

    def __post_init__(self) -> None:
        """Check the ranges."""
        for name, value in vars(self).items():
            if not 0 <= value < float("inf"):
                raise UserInputError(f"limits.{name}", value, "a finite number from 0 (0: no limit)")


@dataclass(frozen=True)
class ToolSpec:
    """A function that the policy may call.

    ``parameters`` is a JSON schema of type object, against which arguments are checked before a call runs; arguments
    that it does not name are refused unless ``additionalProperties`` says otherwise.

    Raises:
        UserInputError: no name, or a schema that is not valid.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    limits: ToolLimits = field(default_factory=ToolLimits)

    def __post_init__(self) -> None:
        """Check name and schema."""
        if not self.name:
            raise UserInputError("tool name", self.name, "a non-empty text")
        if self.parameters.get("type") != "object":
            raise UserInputError(f"parameters of {self.name}", self.parameters, "a JSON schema of type object")
        if not self._is_simple:
            self._check_schema()

    def _check_schema(self) -> None:
        from jsonschema.exceptions import SchemaError  # type: ignore[import-untyped]
        from referencing import Registry
        from referencing.exceptions import Unresolvable
        from referencing.jsonschema import DRAFT202012

        schema = dict(self.parameters)
        try:
            self._validator.check_schema(schema)
            resolver = Registry().with_resource("", DRAFT202012.create_resource(schema)).resolver()
            for reference in _references(schema):
                resolver.lookup(reference)
        except SchemaError as error:
            raise UserInputError(f"parameters of {self.name}", error.message, "a valid JSON schema") from error
        except Unresolvable as error:
            found = f"reference {error.ref!r}"
            raise UserInputError(f"parameters of {self.name}", found, "references inside the schema") from error

    @property
    def _is_simple(self) -> bool:
        """Whether the schema asks no more than that arguments are there and of a plain type."""
        properties = self.parameters.get("properties", {})
        plain = all(
            isinstance(declared, Mapping)
            and set(declared) <= _SIMPLE[1]
            and all(kind in _JSON_TYPES for kind in _kinds(declared))
            for declared in properties.values()
        )
        further = self.parameters.get("additionalProperties", False)
        required = self.parameters.get("required", [])
        return plain and set(self.parameters) <= _SIMPLE[0] and isinstance(further, bool) and isinstance(required, list)

    @cached_property
    def _validator(self) -> Any:
        from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
        from referencing import Registry

        # With a registry of its own no reference is ever looked up on a network.
        return Draft202012Validator(dict(self.parameters), registry=Registry())

    def signature(self) -> dict[str, Any]:
        """Name, description and parameters as plain JSON values."""
        return {"name": self.name, "description": self.description, "parameters": self.parameters}

    def signature_json(self) -> str:
        """The signature as it is shown in the prompt, on one line."""
        return json.dumps(self.signature(), ensure_ascii=False)

    def argument_error(self, arguments: Mapping[str, Any]) -> str | None:
        """What is wrong with the arguments of a call, in words the policy can act on; None if they fit."""
        properties: Mapping[str, Any] = self.parameters.get("properties", {})
        names = ", ".join(properties)
        missing = [name for name in self.parameters.get("required", ()) if name not in arguments]
        if missing:
            return f"missing argument {missing[0]!r}; {self.name} takes: {names}"
        for name, value in arguments.items():
            if name not in properties:
                if self.parameters.get("additionalProperties", False) is not False:
                    continue
                return f"unknown argument {name!r}; {self.name} takes: {names}"
            allowed = _kinds(properties[name]) if isinstance(properties[name], Mapping) else []
            if allowed and not any(_has_type(value, kind) for kind in allowed):
                return f"argument {name!r} must be of type {' or '.join(allowed)}"
        return None if self._is_simple else self._schema_error(arguments)

    def _schema_error(self, arguments: Mapping[str, Any]) -> str | None:
        """What the rest of the schema has against the arguments: the first place in their order."""
        try:
            errors = sorted(self._validator.iter_errors(dict(arguments)), key=lambda error: list(map(str, error.path)))
        except RecursionError:
            return "the arguments are nested too deeply"
        if not errors:
            return None
        place = "".join(f"[{step!r}]" if isinstance(step, int) else f".{step}" for step in errors[0].path)
        reason = errors[0].message
        if len(reason) > _LONGEST_REASON:
            reason = f"... {reason[-_LONGEST_REASON:]}"  # what is asked for stands at the end
        return f"argument {place.removeprefix('.')!r}: {reason}" if place else reason


def _references(schema: object) -> Iterator[str]:
    """All references anywhere in a schema."""
    children: Iterable[object] = ()
    if isinstance(schema, Mapping):
        if isinstance(reference := schema.get("$ref"), str):
            yield reference
        children = schema.values()
    elif isinstance(schema, list):
        children = schema
    for child in children:
        yield from _references(child)


def _kinds(declared: Mapping[str, Any]) -> list[str]:
    """The JSON types that a property may have, empty: any."""
    kind = declared.get("type")
    return [kind] if isinstance(kind, str) else list(kind or ())


def _has_type(value: object, kind: str) -> bool:
    if isinstance(value, bool):  # a bool is an int for Python, not for JSON
        return kind == "boolean"
    return isinstance(value, _JSON_TYPES.get(kind, (object,)))


PYTHON_TOOL = ToolSpec(
    name="execute_python_code_with_standard_io",
    description="Run Python code with input on stdin; returns stdout.",
    parameters={
        "type": "object",
        "properties": {"code": {"type": "string"}, "input": {"type": "string"}},
        "required": ["code"],
    },
)
"""The paper's one tool. ``input`` may be left out: most programs read nothing."""
