"""Calls in the ways data sets write them."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar_trainer.demonstrations.calls import call_from_json, calls_from_python
from rstar_trainer.demonstrations.conversation import Call, DroppedRowError


@pytest.mark.parametrize(
    "written",
    [
        '{"name": "f", "arguments": {"a": 1}}',
        '{"name": "f", "arguments": "{\\"a\\": 1}"}',
        '{"name": "f", "arguments": \'{"a": 1}\'}',
        {"name": "f", "arguments": {"a": 1}},
        {"type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}},
        '{"name": "f", "parameters": {"a": 1}}',
    ],
)
def test_every_way_of_writing_json_is_one_call(written: object) -> None:
    assert call_from_json(written) == Call("f", {"a": 1})


@pytest.mark.parametrize("written", ["", "no json", "[1]", '{"arguments": {}}', '{"name": "f", "arguments": 3}', None])
def test_what_is_no_call_is_dropped(written: object) -> None:
    with pytest.raises(DroppedRowError):
        call_from_json(written)


def test_a_quote_inside_quoted_arguments_stays() -> None:
    call = call_from_json('{"name": "f", "arguments": \'{"a": "it\\\'s"}\'}')
    assert call.arguments == {"a": "it's"}


def test_python_calls_keep_their_order_names_and_values() -> None:
    text = '[Market Trends API(kind="A, (b)", n=-2), user.get(flags=[True, null], nested={"a": {"b": 1.5}})]'
    assert calls_from_python(text) == (
        Call("Market Trends API", {"kind": "A, (b)", "n": -2}),
        Call("user.get", {"flags": [True, None], "nested": {"a": {"b": 1.5}}}),
    )


@pytest.mark.parametrize("text", ["", "Hello (there).", "[1, 2]", "[see](http://x)", "[]", "I call [f(a=1)] now"])
def test_ordinary_text_is_no_python_call(text: str) -> None:
    assert calls_from_python(text) == ()


@pytest.mark.parametrize("text", ["[f(1)]", "[f(a=b)]", "[f(a=open('x'))]", "[f(**{})]", "[f(a=)]", "[f(a={1, 2})]"])
def test_arguments_that_are_no_literals_are_dropped_and_never_run(text: str) -> None:
    with pytest.raises(DroppedRowError, match="cannot be read"):
        calls_from_python(text)


@given(st.text(max_size=60))
def test_any_text_is_a_call_none_or_dropped(text: str) -> None:
    for written in (text, f"[{text}]", f"[f({text})]"):
        for read in (calls_from_python, call_from_json):
            with contextlib.suppress(DroppedRowError):
                read(written)
