from __future__ import annotations

from pathlib import Path

import pytest

from rstar_model.chat_format import ChatFormat
from rstar_model.tokenizer import Tokenizer
from rstar_model.tool_calls import ToolCall
from rstar_model.tools import PYTHON_TOOL
from rstar_model.types import SpanKind
from rstar_protos.errors import UserInputError

RSTAR = ChatFormat.load("rstar")

LLAMA3 = """
name = "llama3"
begin = "<|endoftext|>"
turn_header = "<|im_start|>{role}<|im_start|>\\n\\n"
end_of_turn = "<|im_end|>"
system_prompt = "s"
tools_prompt = "{tools}"
user_template = "{problem}"
tool_response_template = "{response}"
[roles]
tool = "ipython"
"""


def test_the_prompt_has_all_parts_of_the_papers_format() -> None:
    text = RSTAR.prompt_text("How many?", [PYTHON_TOOL])
    parts = [
        "<|im_start|>system\n",
        "<reason></reason>",
        "<answer></answer>",
        "<tools>\n" + PYTHON_TOOL.signature_json() + "\n</tools>",
        "<tool_call></tool_call>",
        '{"name": ..., "arguments": {...}}',
        "<|im_end|>\n<|im_start|>user\n",
        "<answer>",
        "\\boxed{}",
        "How many?",
        "<|im_end|>\n<|im_start|>assistant\n<reason>",
    ]
    positions = [text.index(part, 0) for part in parts if part != "<answer>"]
    assert positions == sorted(positions)
    assert text.endswith("<reason>")


def test_without_tools_the_prompt_names_none() -> None:
    text = RSTAR.prompt_text("How many?")
    assert "tool" not in text
    assert PYTHON_TOOL.name not in text


def test_prompt_ids_spell_the_prompt(tokenizer: Tokenizer) -> None:
    ids = RSTAR.prompt_ids(tokenizer, "How many?", [PYTHON_TOOL])
    assert ids == tokenizer.encode(RSTAR.prompt_text("How many?", [PYTHON_TOOL]))


def test_prompt_spans_are_the_prompt_ids_in_two_parts(tokenizer: Tokenizer) -> None:
    (prompt, prompt_ids), (opening, opening_ids) = RSTAR.prompt_spans(tokenizer, "How many?", [PYTHON_TOOL])
    assert (prompt, opening) == (SpanKind.PROMPT, SpanKind.TEMPLATE)
    assert prompt_ids + opening_ids == RSTAR.prompt_ids(tokenizer, "How many?", [PYTHON_TOOL])
    assert tokenizer.decode(opening_ids) == "<|im_start|>assistant\n<reason>"


def test_braces_in_a_problem_are_left_alone() -> None:
    assert "{problem} {tools} {role} \\frac{1}{2}" in RSTAR.prompt_text("{problem} {tools} {role} \\frac{1}{2}")


def test_a_tool_turn_opens_the_next_policy_turn(tokenizer: Tokenizer) -> None:
    spans = RSTAR.tool_turn_spans(tokenizer, ["4\n", "5\n"])
    text = "".join(tokenizer.decode(ids) for _, ids in spans)
    assert text == (
        "\n<|im_start|>user\n<tool_response>\n4\n\n</tool_response>\n<tool_response>\n5\n\n</tool_response>"
        "<|im_end|>\n<|im_start|>assistant\n<reason>"
    )
    assert [kind for kind, _ in spans] == [SpanKind.TEMPLATE, SpanKind.TOOL] * 2 + [SpanKind.TEMPLATE]


def test_a_missing_end_of_turn_is_put_in_as_template(tokenizer: Tokenizer) -> None:
    spans = RSTAR.tool_turn_spans(tokenizer, ["4"], turn_closed=False)
    assert spans[0][0] is SpanKind.TEMPLATE
    assert tokenizer.decode(spans[0][1]).startswith("<|im_end|>\n<|im_start|>user\n")


def test_a_long_response_is_cut_in_the_middle_with_a_mark(tokenizer: Tokenizer) -> None:
    text = "first line\n" + "x1 " * 500 + "\nlast line"
    shown, cut = RSTAR.truncated(tokenizer, text, 40)
    assert cut
    assert shown.startswith("first line")
    assert shown.endswith("last line")
    omitted = len(tokenizer.encode_untrusted(text)) - 40
    assert f"... {omitted} tokens left out ..." in shown


def test_a_cut_inside_a_character_leaves_no_half_of_it(tokenizer: Tokenizer) -> None:
    text = "\N{SNOWMAN}" * 50
    for limit in range(1, 40):
        shown, cut = RSTAR.truncated(tokenizer, text, limit)
        assert cut
        assert "\N{REPLACEMENT CHARACTER}" not in shown


def test_a_replacement_character_of_the_text_itself_stays(tokenizer: Tokenizer) -> None:
    text = "\N{REPLACEMENT CHARACTER}" * 50
    shown, _ = RSTAR.truncated(tokenizer, text, 12)
    assert shown.startswith("\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}\n")


def test_every_shipped_format_is_usable_with_its_family(families: dict[str, Tokenizer]) -> None:
    assert set(ChatFormat.available()) == {*families, "rstar"}
    for name, tokenizer in families.items():
        chat_format = ChatFormat.load(name)
        spans = chat_format.prompt_spans(tokenizer, "How many?", [PYTHON_TOOL])
        assert [kind for kind, _ in spans] == [SpanKind.PROMPT, SpanKind.TEMPLATE]
        assert chat_format.stop_ids(tokenizer) == {tokenizer.token_id(chat_format.end_of_turn)}


@pytest.mark.parametrize("problem", ["x", "  x\n", "", " \n "])
@pytest.mark.parametrize("response", ["4", " 4 \n", ""])
def test_a_format_that_trims_leaves_no_space_around_a_turn(
    families: dict[str, Tokenizer], problem: str, response: str
) -> None:
    bare = {"user_template": "{problem}", "tool_response_template": "{response}", "system_prompt": " s\n"}
    trimming = ChatFormat.load("llama-3").model_copy(update=bare)
    text = trimming.prompt_text(problem)
    assert "<|end_header_id|>\n\ns<|eot_id|>" in text
    assert f"user<|end_header_id|>\n\n{problem.strip()}<|eot_id|>" in text
    assert f"ipython<|end_header_id|>\n\n{response.strip()}<|eot_id|>" in trimming.tool_turn_text([response])


def test_an_empty_system_prompt_makes_no_system_turn() -> None:
    assert RSTAR.model_copy(update={"system_prompt": ""}).prompt_text("x").startswith("<|im_start|>user\n")


@pytest.mark.parametrize("limit", [None, 0, 10_000])
def test_a_response_within_the_limit_is_untouched(tokenizer: Tokenizer, limit: int | None) -> None:
    assert RSTAR.truncated(tokenizer, "4\n", limit) == ("4\n", False)


def test_a_turn_stops_at_the_end_of_turn_token(tokenizer: Tokenizer) -> None:
    assert RSTAR.stop_ids(tokenizer) == {tokenizer.token_id("<|im_end|>")}


def test_a_format_for_another_model_is_refused(tokenizer: Tokenizer) -> None:
    other = RSTAR.model_copy(update={"end_of_turn": "<|eot_id|>"})
    with pytest.raises(UserInputError, match="eot_id"):
        other.stop_ids(tokenizer)


def test_what_the_format_writes_the_parser_reads() -> None:
    arguments = {"code": 'print("</tool_call>")\n', "input": "é"}
    (call,) = RSTAR.parser().parse("text" + RSTAR.tool_call_text(PYTHON_TOOL.name, arguments)).calls
    assert isinstance(call, ToolCall)
    assert (call.name, call.arguments) == (PYTHON_TOOL.name, arguments)


def test_another_format_is_another_file(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = tmp_path / "llama3.toml"
    path.write_text(LLAMA3)
    other = ChatFormat.load(path)
    assert ChatFormat.load(str(path)) == other
    assert other.prompt_text("p") == (
        "<|endoftext|><|im_start|>system<|im_start|>\n\ns<|im_end|>"
        "<|im_start|>user<|im_start|>\n\np<|im_end|><|im_start|>assistant<|im_start|>\n\n"
    )
    spans = other.tool_turn_spans(tokenizer, ["4"])
    assert tokenizer.decode(spans[0][1]) == "<|im_start|>ipython<|im_start|>\n\n"


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ('user_template = "{problem}"', 'user_template = "none"', "user_template"),
        ('user_template = "{problem}"', 'user_template = "{problem}{problem}"', "user_template"),
        ('name = "llama3"', 'name = "llama3"\nunknown = 1', "unknown"),
        ('tool = "ipython"', 'judge = "x"', "roles.judge"),
        ('end_of_turn = "<|im_end|>"', "", "end_of_turn"),
        ('name = "llama3"', "name = ", "TOML"),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, old: str, new: str, named: str) -> None:
    path = tmp_path / "format.toml"
    path.write_text(LLAMA3.replace(old, new))
    with pytest.raises(UserInputError, match=named):
        ChatFormat.load(path)


@pytest.mark.parametrize("name", ["nosuch", "nosuch.toml", "../rstar"])
def test_an_unknown_format_is_the_users_error(name: str) -> None:
    with pytest.raises(UserInputError):
        ChatFormat.load(name)


def test_answer_tags_are_counted() -> None:
    assert RSTAR.count_answer_tags("<answer>1</answer> <answer>") == 2
