from __future__ import annotations

import json

import pytest

from rstar_model.tools import PYTHON_TOOL, ToolSpec


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
