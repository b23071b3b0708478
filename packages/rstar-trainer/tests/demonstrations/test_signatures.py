"""Tool signatures of several sources become one kind."""

from __future__ import annotations

import json

import pytest

from rstar_trainer.demonstrations.conversation import DroppedRowError
from rstar_trainer.demonstrations.signatures import parse_tools, tools_in_text

PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}

LOOSE = {"type": "dict", "properties": {"a": {"type": "int"}}}


@pytest.mark.parametrize(
    "tool",
    [
        {"name": "f", "description": "d", "parameters": PARAMETERS},
        {"type": "function", "function": {"name": "f", "description": "d", "parameters": PARAMETERS}},
        {"name": "f", "description": "d", "parameters": {**LOOSE, "required": ["a"]}},
        {"name": "f", "description": "d", "parameters": {"a": {"type": "int"}}, "required": ["a"]},
        {
            "type": "function",
            "function": {"name": "f", "description": "d", "parameters": LOOSE},
            "required": ["a"],
        },
    ],
)  # fmt: skip
def test_every_wrapping_gives_the_same_schema(tool: object) -> None:
    for value in ([tool], json.dumps([tool])):
        (found,) = parse_tools(value)
        assert (found.name, found.description, dict(found.parameters)) == ("f", "d", PARAMETERS)


def test_a_type_that_json_does_not_have_is_left_open() -> None:
    (tool,) = parse_tools(
        [{"name": "f", "parameters": {"properties": {"a": {"type": "any"}, "b": {"type": "list[str]"}}}}]
    )
    assert tool.parameters["properties"] == {"a": {}, "b": {"type": "array"}}


@pytest.mark.parametrize("value", ["", None, "[]", []])
def test_no_tools_are_no_tools(value: object) -> None:
    assert parse_tools(value) == ()


@pytest.mark.parametrize("value", ["{", '{"name": "f"}', [{"description": "d"}], [{"name": "f", "parameters": 3}], [1]])
def test_what_is_no_signature_is_dropped(value: object) -> None:
    with pytest.raises(DroppedRowError):
        parse_tools(value)


def test_two_tools_of_one_name_are_dropped() -> None:
    with pytest.raises(DroppedRowError, match="one name"):
        parse_tools([{"name": "f"}, {"name": "f"}])


def test_signatures_are_found_in_a_text_alone_and_in_lists() -> None:
    text = 'Use these [if needed]:\n{"name": "f"}\n[{"name": "g"}, {"name": "h"}] and {broken'
    assert [tool["name"] for tool in tools_in_text(text)] == ["f", "g", "h"]
