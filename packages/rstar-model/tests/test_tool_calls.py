from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar_model.tool_calls import MalformedCall, MalformedKind, ParsedTurn, ToolCall, ToolCallParser

# Text that is likely to confuse: tags, control tokens, quotes, braces.
confusing = st.lists(
    st.sampled_from(
        ["<tool_call>", "</tool_call>", "<|im_end|>", '"', "\\", "{", "}", "\n", "\\n", "é", "error", "</answer>"]
    )
    | st.text(max_size=3),
    max_size=8,
).map("".join)
# Text outside of calls: anything that opens none.
outside = confusing.map(lambda text: text.replace("<tool_call>", "")).filter(lambda text: "<tool_call>" not in text)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | confusing,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(confusing, inner, max_size=3),
    max_leaves=6,
)
calls = st.tuples(confusing.filter(bool), st.dictionaries(confusing, json_values, max_size=3))


def parse(text: str) -> ParsedTurn:
    return ToolCallParser().parse(text)


def written(name: str, arguments: dict[str, object], ascii_only: bool = False) -> str:
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=ascii_only)
    return f"<tool_call>{body}</tool_call>"


GOOD = written("f", {"x": 1})


@given(st.lists(st.tuples(calls, outside, st.booleans()), max_size=4), outside)
def test_every_call_is_read_whatever_its_strings_hold(turn, before: str) -> None:
    text = before + "".join(written(*call, ascii_only=ascii_only) + after for call, after, ascii_only in turn)
    parsed = parse(text)
    assert [(call.name, call.arguments) for call in parsed.calls] == [call for call, _, _ in turn]
    assert not parsed.unclosed


@given(st.text() | confusing)
def test_no_text_makes_the_parser_fail(text: str) -> None:
    for call in parse(text).calls:
        assert text.startswith("<tool_call>", call.position)


@given(calls, st.data())
def test_a_turn_cut_inside_a_call_is_unclosed_and_runs_nothing(call, data: st.DataObject) -> None:
    text = written(*call)
    cut = data.draw(st.integers(len("<tool_call>"), len(text) - len("</tool_call>") + 11))
    parsed = parse(text[:cut])
    assert not any(isinstance(found, ToolCall) for found in parsed.calls)


@given(calls)
def test_a_whole_object_without_its_closing_tag_is_unclosed(call) -> None:
    assert parse(written(*call).removesuffix("</tool_call>")) == ParsedTurn((), unclosed=True)


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("", MalformedKind.INVALID_JSON),
        ("{'name': 'f'}", MalformedKind.INVALID_JSON),
        ('{"name": "f", "arguments": {"code": "a\nb"}}', MalformedKind.INVALID_JSON),
        ('{"name": "f", "name": "g", "arguments": {}}', MalformedKind.REPEATED_KEY),
        ('{"name": "f", "arguments": {"x": 1, "x": 1}}', MalformedKind.REPEATED_KEY),
        ('{"name": "f", "arguments": {"x": NaN}}', MalformedKind.NOT_A_JSON_VALUE),
        ('{"name": "f", "arguments": {"x": -Infinity}}', MalformedKind.NOT_A_JSON_VALUE),
        ('{"name": "f", "arguments": {"x": 1e999}}', MalformedKind.NOT_A_JSON_VALUE),
        (
            '{"name": "f", "arguments": {"x": NaN, "y": "</tool_call><tool_call>{}</tool_call>"}}',
            MalformedKind.NOT_A_JSON_VALUE,
        ),
        ('{"name": "f", "name": "g", "arguments": {"x": "\\"</tool_call><tool_call>["}}', MalformedKind.REPEATED_KEY),
        ("[" * 100_000, MalformedKind.TOO_DEEP),
        ('["</tool_call><tool_call>", ' + "[" * 100_000 + "]" * 100_001, MalformedKind.TOO_DEEP),
        ("9" * 10_000, MalformedKind.NUMBER_TOO_LONG),
        ("[]", MalformedKind.NOT_AN_OBJECT),
        ('"f"', MalformedKind.NOT_AN_OBJECT),
        ("{}", MalformedKind.BAD_NAME),
        ('{"name": 1, "arguments": {}}', MalformedKind.BAD_NAME),
        ('{"name": "", "arguments": {}}', MalformedKind.BAD_NAME),
        ('{"name": "f"}', MalformedKind.BAD_ARGUMENTS),
        ('{"name": "f", "arguments": "{}"}', MalformedKind.BAD_ARGUMENTS),
        ('{"name": "f", "arguments": {}} {"name": "g", "arguments": {}}', MalformedKind.TEXT_AFTER_OBJECT),
        ('{"name": "f", "arguments": {}} done', MalformedKind.TEXT_AFTER_OBJECT),
        ('{"name": "f", "arguments": {"x": "\\ud800"}}', MalformedKind.INVALID_TEXT),
        ('{"name": "\\udfff", "arguments": {}}', MalformedKind.INVALID_TEXT),
    ],
)
def test_a_malformed_call_has_its_kind_and_hides_no_other(body: str, kind: MalformedKind) -> None:
    parsed = parse(f"{GOOD}<tool_call>{body}</tool_call>{GOOD}")
    first, bad, last = parsed.calls
    assert isinstance(first, ToolCall)
    assert isinstance(last, ToolCall)
    assert isinstance(bad, MalformedCall)
    assert (bad.kind, bad.position) == (kind, len(GOOD))
    assert len(bad.message) < 200


def test_the_message_names_the_position_inside_the_call() -> None:
    (call,) = parse('<tool_call>{"name": f}</tool_call>').calls
    assert isinstance(call, MalformedCall)
    assert "character 9" in call.message


@pytest.mark.parametrize(
    "start", ["{oops ", '{"name": "', '{"name": "f", "arguments": {"x": "abc</tool_call>', '["a", "']
)
def test_a_call_left_open_does_not_swallow_the_next(start: str) -> None:
    bad, good = parse(f"<tool_call>{start}{GOOD}").calls
    assert isinstance(bad, MalformedCall)
    assert isinstance(good, ToolCall)


def test_an_unclosed_call_keeps_the_calls_before_it() -> None:
    parsed = parse(GOOD + '<tool_call>{"name": "f"')
    assert len(parsed.calls) == 1
    assert parsed.unclosed


def test_white_space_around_the_object_is_fine() -> None:
    assert len(parse('<tool_call>\n {"name": "f", "arguments": {}} \n</tool_call>').calls) == 1


def test_a_closing_tag_alone_is_text() -> None:
    assert parse("no call </tool_call> here") == ParsedTurn((), unclosed=False)


def test_other_tags_are_data() -> None:
    (call,) = ToolCallParser("[CALL]", "[/CALL]").parse('[CALL]{"name": "f", "arguments": {}}[/CALL]').calls
    assert isinstance(call, ToolCall)


def test_many_opened_calls_are_each_reported() -> None:
    assert len(parse("<tool_call>" * 5_000 + "</tool_call>").calls) == 5_000
