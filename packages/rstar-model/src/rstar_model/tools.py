"""What a tool looks like to the policy: its name, its purpose and a JSON schema of its arguments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["PYTHON_TOOL", "ToolSpec"]

_JSON_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
    "null": (type(None),),
}


@dataclass(frozen=True)
class ToolSpec:
    """A function that the policy may call.

    ``parameters`` is a JSON schema of type object; its ``properties``, ``required`` and the ``type`` of each
    property are checked before a call runs.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]

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
            declared = properties[name].get("type")
            allowed = [declared] if isinstance(declared, str) else list(declared or ())
            if allowed and not any(_has_type(value, kind) for kind in allowed):
                return f"argument {name!r} must be of type {' or '.join(allowed)}"
        return None


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
