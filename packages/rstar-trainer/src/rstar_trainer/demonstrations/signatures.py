"""Tool signatures as data sets write them -> `ToolSpec`: wrappers taken off, type names those of JSON schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rstar_model.tools import ToolSpec
from rstar_trainer.demonstrations.conversation import DroppedRowError

__all__ = ["parse_tools", "tools_in_text"]

_TYPE_NAMES = {
    "dict": "object",
    "str": "string",
    "text": "string",
    "float": "number",
    "double": "number",
    "int": "integer",
    "long": "integer",
    "bool": "boolean",
    "list": "array",
    "tuple": "array",
    "set": "array",
}
_JSON_TYPES = frozenset({"string", "number", "integer", "boolean", "array", "object", "null"})


def parse_tools(value: Any) -> tuple[ToolSpec, ...]:
    """Signatures from a list or from its JSON text.

    Raises:
        DroppedRowError: not a list of signatures.
    """
    if isinstance(value, str):
        if not value.strip():
            return ()
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            raise DroppedRowError("tools are not readable JSON") from error
    if value is None:
        return ()
    if not isinstance(value, list):
        raise DroppedRowError("tools are no list")
    tools = tuple(_tool(item) for item in value)
    if len({tool.name for tool in tools}) != len(tools):
        raise DroppedRowError("two tools of one name")
    return tools


def tools_in_text(text: str) -> list[Any]:
    """All JSON objects with a name that stand in a text, alone or in lists, in order."""
    decoder = json.JSONDecoder()
    found: list[Any] = []
    position = 0
    while (start := _next_open(text, position)) >= 0:
        try:
            value, position = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            position = start + 1
            continue
        items = value if isinstance(value, list) else [value]
        found += [item for item in items if isinstance(item, dict) and ("name" in item or "function" in item)]
    return found


def _next_open(text: str, position: int) -> int:
    places = [place for place in (text.find("[", position), text.find("{", position)) if place >= 0]
    return min(places, default=-1)


def _tool(item: Any) -> ToolSpec:
    if isinstance(item, Mapping) and isinstance(item.get("function"), Mapping):
        # Some files keep `required` beside the function instead of in its parameters.
        outside = item.get("required")
        item = dict(item["function"])
        if outside is not None and isinstance(item.get("parameters"), Mapping) and "required" not in item["parameters"]:
            item["parameters"] = {**item["parameters"], "required": outside}
    if not isinstance(item, Mapping) or not isinstance(item.get("name"), str) or not item["name"]:
        raise DroppedRowError("a tool without a name")
    parameters = item.get("parameters") or item.get("arguments") or {}
    if not isinstance(parameters, Mapping):
        raise DroppedRowError("a tool whose parameters are no object")
    if "properties" not in parameters and not isinstance(parameters.get("type"), str):
        parameters = {"type": "object", "properties": parameters}
    schema = _schema(parameters)
    schema["type"] = "object"
    if not isinstance(schema.get("properties"), dict):
        schema["properties"] = {}
    required = item.get("required") if "required" not in schema else schema["required"]
    schema["required"] = [name for name in required or () if name in schema["properties"]]
    description = item.get("description")
    return ToolSpec(item["name"], description if isinstance(description, str) else "", schema)


def _schema(value: Mapping[str, Any]) -> dict[str, Any]:
    """A schema with JSON type names, its properties and items too; a type that JSON does not have is left out."""
    schema: dict[str, Any] = {}
    for key, entry in value.items():
        if key == "properties" and isinstance(entry, Mapping):
            schema[key] = {
                str(name): _schema(part) if isinstance(part, Mapping) else {} for name, part in entry.items()
            }
        elif key == "items" and isinstance(entry, Mapping):
            schema[key] = _schema(entry)
        elif key == "type":
            kinds = [_kind(kind) for kind in (entry if isinstance(entry, list) else [entry])]
            known = [kind for kind in kinds if kind is not None]
            if known and len(known) == len(kinds):
                schema[key] = known if isinstance(entry, list) else known[0]
        elif not (key == "required" and not isinstance(entry, list)):
            schema[key] = entry
    return schema


def _kind(name: Any) -> str | None:
    text = str(name).lower().partition("[")[0].partition(",")[0].strip()
    text = _TYPE_NAMES.get(text, text)
    return text if text in _JSON_TYPES else None
