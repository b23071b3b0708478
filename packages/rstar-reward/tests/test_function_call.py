from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rstar_reward import Segment, SegmentKind, VerdictStatus, check_golds, verify
from rstar_reward._call_texts import CallSyntaxError, read_calls
from rstar_reward.function_call import FunctionCallVerifier

GOLD = json.dumps([{"book_table": {"place": ["Lantern", "The Lantern"], "guests": [4], "outside": [False, ""]}}])
RIGHT = {"name": "book_table", "arguments": {"place": "Lantern", "guests": 4}}


def called(*calls: dict[str, Any]) -> str:
    return "".join(f"<tool_call>{json.dumps(call)}</tool_call>" for call in calls)


def reward(response: str, gold: str = GOLD) -> float | None:
    return verify(gold, response, verifier="function_call").reward


@pytest.mark.parametrize(
    "response",
    [
        called(RIGHT),
        f"<reason>Four people.</reason>\n{called(RIGHT)}",
        json.dumps(RIGHT),
        json.dumps([RIGHT]),
        f"```json\n{json.dumps(RIGHT)}\n```",
        f"<answer>{json.dumps(RIGHT)}</answer>",
        '[book_table(place="Lantern", guests=4)]',
        "book_table(place='the lantern', guests=4, outside=False)",
        called({"name": "book_table", "arguments": {"guests": 4.0, "place": "lantern", "outside": False}}),
    ],
)
def test_a_call_with_right_values_is_paid(response: str) -> None:
    assert reward(response) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        {"place": "Lantern"},
        {"place": "Lantern", "guests": 5},
        {"place": "Lantern", "guests": "4"},
        {"place": "Lantern", "guests": True},
        {"place": "Lantern", "guests": None},
        {"place": ["Lantern"], "guests": 4},
        {"place": "Lantern", "guests": 4, "outside": True},
        {"place": "Lantern", "guests": 4, "date": "today"},
    ],
)
def test_wrong_missing_and_further_arguments_are_not_paid(arguments: dict[str, Any]) -> None:
    assert reward(called({"name": "book_table", "arguments": arguments})) == 0


@pytest.mark.parametrize(
    "response",
    [
        called({**RIGHT, "name": "book_tables"}),
        called(RIGHT, RIGHT),
        called(RIGHT)[: -len("</tool_call>")],
        "<tool_call>not JSON</tool_call>",
        '<tool_call>{"name": "x", "name": "book_table", "arguments": {}}</tool_call>',
        "book_table('Lantern', 4)",
        "book_table(place='Lantern', guests=2+2)",
        "__import__('os').system('id')",
        "[" * 5000,
        "book_table(" * 2000 + ")" * 2000,
    ],
)
def test_other_calls_and_what_is_no_call_are_not_paid(response: str) -> None:
    assert reward(response) == 0


def test_calls_of_one_turn_come_in_any_order_each_once() -> None:
    gold = json.dumps([{"play": {"artist": ["A", "B"]}}, {"play": {"artist": ["A"]}}])
    one, other = ({"name": "play", "arguments": {"artist": artist}} for artist in "AB")
    assert reward(called(one, other), gold) == 1
    assert reward(called(other, one), gold) == 1
    assert reward(called(one, one), gold) == 1
    assert reward(called(other, other), gold) == 0
    assert reward(called(one), gold) == 0


def test_no_call_may_be_what_was_asked_for() -> None:
    assert reward("None of the functions can do that.", "[]") == 1
    assert reward(called(RIGHT), "[]") == 0
    verdict = verify(GOLD, "I would rather not.", verifier="function_call")
    assert (verdict.status, verdict.reward) == (VerdictStatus.NO_ANSWER, 0.0)
    assert reward("", "[]") == 0


def test_a_reference_may_be_a_call_itself() -> None:
    assert reward(called(RIGHT), json.dumps(RIGHT)) == 1
    assert reward(called({"name": "book_table", "arguments": {"guests": 4}}), json.dumps([RIGHT])) == 0


def test_nested_values_have_choices_too() -> None:
    gold = json.dumps([{"draw": {"shape": [{"kind": ["circle"], "radius": [2, 2.0], "fill": ["red", ""]}]}}])
    assert reward(called({"name": "draw", "arguments": {"shape": {"kind": "circle", "radius": 2}}}), gold) == 1
    assert reward(called({"name": "draw", "arguments": {"shape": {"kind": "circle"}}}), gold) == 0


def test_names_with_dots_may_be_written_without() -> None:
    gold = json.dumps([{"math.area": {"side": [2]}}])
    assert reward(called({"name": "math_area", "arguments": {"side": 2}}), gold) == 1


def test_only_calls_of_the_last_turn_count() -> None:
    segments = [
        Segment(SegmentKind.POLICY, called(RIGHT)),
        Segment(SegmentKind.TOOL, called(RIGHT)),
        Segment(SegmentKind.POLICY, "Done."),
    ]
    assert verify(GOLD, segments, verifier="function_call").status is VerdictStatus.NO_ANSWER
    assert verify(GOLD, segments[:1], verifier="function_call").reward == 1


def test_a_closing_tag_inside_an_argument_belongs_to_it() -> None:
    call = {"name": "say", "arguments": {"text": "a </tool_call> b"}}
    assert reward(called(call), json.dumps(call)) == 1


def test_unusable_references_are_refused() -> None:
    assert set(check_golds([GOLD, "[]", "call f", "[1]", '{"f": 3}'], "function_call")) == {2, 3, 4}


@pytest.mark.parametrize("text", ["f(**x)", "f(a=1, a=2)", "f(a=g(1))", "f(a={1: 2, 1: 3})", "(lambda: 0)(a=1)", "f"])
def test_call_texts_that_are_refused(text: str) -> None:
    with pytest.raises(CallSyntaxError):
        read_calls(text)


_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=6,
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.text(max_size=6), _values, max_size=4), st.integers(0, 3))
def test_a_call_fits_itself_in_any_spelling_of_its_json(arguments: dict[str, Any], indent: int) -> None:
    call = {"name": "f", "arguments": arguments}
    written = f"<tool_call>{json.dumps(call, indent=indent or None, ensure_ascii=indent < 2)}</tool_call>"
    if "tool_call>" not in json.dumps(call, ensure_ascii=False):
        assert FunctionCallVerifier().judge(json.dumps(call), written).status is VerdictStatus.CORRECT


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet="fab01.,=()[]{}'\": \n\\-*#<>/tol_c", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(CallSyntaxError):
        read_calls(text)


@pytest.mark.shared_data
def test_the_keys_of_the_leaderboard_verify_against_a_call_made_from_them(shared: Path) -> None:
    verifier = FunctionCallVerifier()
    lines = (shared / "data" / "bfcl_v3_200_possible_answer.jsonl").read_text("utf-8").split("\n")
    rows = [json.loads(line) for line in lines if line]
    single_turn = [row["ground_truth"] for row in rows if not row["category"].startswith("multi_turn")]
    assert len(single_turn) == 160
    for truth in single_turn:
        gold, calls = json.dumps(truth), [made(call) for call in truth]
        assert verifier.check_gold(gold) is None
        assert verifier.judge(gold, called(*calls)).status is VerdictStatus.CORRECT
        assert verifier.judge(gold, called(*calls[1:], {**calls[0], "name": "other"})).status is VerdictStatus.WRONG
        without = dict(list(calls[0]["arguments"].items())[1:])
        first = next(iter(calls[0]["arguments"]), None)
        if first is not None and "" not in next(iter(truth[0].values()))[first]:
            shorter = [{**calls[0], "arguments": without}, *calls[1:]]
            assert verifier.judge(gold, called(*shorter)).status is VerdictStatus.WRONG


def made(key: dict[str, Any]) -> dict[str, Any]:
    [(name, choices)] = key.items()
    given = {argument: next((value for value in right if value != ""), None) for argument, right in choices.items()}
    return {"name": name, "arguments": {name: plain(value) for name, value in given.items() if value is not None}}


def plain(value: Any) -> Any:
    """The first choice of everything nested."""
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {
            name: plain(right[0] if isinstance(right, list) and right else right)
            for name, right in value.items()
            if not (isinstance(right, list) and right and right[0] == "")
        }
    return value
