from __future__ import annotations

import json

import pytest

from rstar_model.tools import PYTHON_TOOL, ToolLimits, ToolSpec
from rstar_protos.errors import UserInputError


def test_the_signature_is_one_line_of_json() -> None:
    signature = PYTHON_TOOL.signature_json()
    assert "\n" not in signature
    assert json.loads(signature)["name"] == "execute_python_code_with_standard_io"


@pytest.mark.parametrize("arguments", [{"code": "1"}, {"code": "", "input": "x"}])
def test_good_arguments_pass(arguments) -> None:
    assert PYTHON_TOOL.argument_error(arguments) is None


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({}, "code"),
        ({"code": 1}, "code"),
        ({"code": "1", "inptu": ""}, "inptu"),
        ({"code": "1", "input": None}, "input"),
    ],
)
def test_the_message_names_the_wrong_argument(arguments, named: str) -> None:
    error = PYTHON_TOOL.argument_error(arguments)
    assert error is not None
    assert repr(named) in error


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        ("integer", 3, True),
        ("number", 0.5, "0.5"),
        ("boolean", False, 0),
        ("array", [], {}),
        ("object", {}, []),
        ("null", None, 0),
        (["string", "null"], None, 1),
    ],
)
def test_json_types_are_told_apart(kind, good, bad) -> None:
    tool = ToolSpec("f", "", {"type": "object", "properties": {"x": {"type": kind}}})
    assert tool.argument_error({"x": good}) is None
    assert tool.argument_error({"x": bad}) is not None


def test_further_arguments_pass_where_the_schema_allows_them() -> None:
    tool = ToolSpec("f", "", {"type": "object", "properties": {}, "additionalProperties": True})
    assert tool.argument_error({"anything": 1}) is None


SEARCH = ToolSpec(
    "search",
    "",
    {
        "type": "object",
        "properties": {
            "query": {"type": "string", "minLength": 2},
            "where": {"enum": ["title", "text"]},
            "filters": {
                "type": "array",
                "items": {"type": "object", "properties": {"year": {"type": "integer", "minimum": 1900}}},
                "maxItems": 2,
            },
        },
        "required": ["query"],
    },
)


def test_arguments_that_fit_the_whole_schema_pass() -> None:
    assert SEARCH.argument_error({"query": "ab", "where": "text", "filters": [{"year": 1999}]}) is None


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        ({"query": "a"}, "'query'"),
        ({"query": "ab", "where": "url"}, "'where'"),
        ({"query": "ab", "filters": [{"year": 1999}, {"year": 3}]}, "'filters[1].year'"),
        ({"query": "ab", "filters": [{}, {}, {}]}, "'filters'"),
    ],
)
def test_the_message_names_the_place_in_nested_arguments(arguments, place: str) -> None:
    error = SEARCH.argument_error(arguments)
    assert error is not None
    assert place in error


def test_a_long_argument_is_not_quoted_whole() -> None:
    tool = ToolSpec("f", "", {"type": "object", "properties": {"x": {"type": "string", "maxLength": 3}}})
    error = tool.argument_error({"x": "y" * 100_000})
    assert error is not None
    assert len(error) < 400


def test_references_inside_the_schema_are_followed() -> None:
    name = {"type": "string", "minLength": 1}
    schema = {"type": "object", "properties": {"x": {"$ref": "#/$defs/name"}}, "$defs": {"name": name}}
    assert ToolSpec("f", "", schema).argument_error({"x": "a"}) is None
    assert "'x'" in (ToolSpec("f", "", schema).argument_error({"x": ""}) or "")


@pytest.mark.parametrize("reference", ["http://localhost:1/schema.json", "#/$defs/none", "file:///etc/hostname"])
def test_references_elsewhere_are_refused_and_never_looked_up(reference: str) -> None:
    with pytest.raises(UserInputError, match="reference"):
        ToolSpec("f", "", {"type": "object", "properties": {"x": {"$ref": reference}}})


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"type": "array"},
        {"type": "object", "properties": {"x": {"type": "strnig"}}},
        {"type": "object", "properties": {"x": {"minimum": "low"}}},
        {"type": "object", "required": "x"},
    ],
)
def test_a_schema_that_is_not_valid_is_refused(parameters) -> None:
    with pytest.raises(UserInputError, match="parameters of f"):
        ToolSpec("f", "", parameters)


@pytest.mark.parametrize("limit", [{"wall_seconds": -1.0}, {"wall_seconds": float("nan")}, {"max_concurrent": -1}])
def test_limits_out_of_range_are_refused(limit) -> None:
    with pytest.raises(UserInputError, match="limits"):
        ToolLimits(**limit)


def test_limits_are_no_part_of_what_the_policy_sees() -> None:
    limited = ToolSpec("f", "", {"type": "object"}, ToolLimits(wall_seconds=1.0))
    assert limited.signature_json() == ToolSpec("f", "", {"type": "object"}).signature_json()
