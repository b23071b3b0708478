"""Formats against templates with the structure of each family's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from rstar_model.chat_format import ChatFormat
from rstar_model.template import ModelTemplate
from rstar_model.template_check import HistoryChange, check_template, history_changes, rendered
from rstar_model.testing import FAMILIES, write_family
from rstar_model.tokenizer import Tokenizer, load_tokenizer
from rstar_model.tools import PYTHON_TOOL
from rstar_protos.errors import UserInputError

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + CONTENT + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)


def chatml(content: str) -> ModelTemplate:
    """ChatML that writes `content`, an expression over the message `m`, for each message."""
    return ModelTemplate(CHATML.replace("CONTENT", content))


def with_template(tokenizer: Tokenizer, folder: Path, source: str | None) -> Tokenizer:
    """The same tokenizer in a folder with another template."""
    assert tokenizer.folder is not None
    folder.mkdir()
    (folder / "tokenizer.json").write_bytes((tokenizer.folder / "tokenizer.json").read_bytes())
    if source is not None:
        (folder / "chat_template.jinja").write_text(source)
    return load_tokenizer(folder)


@pytest.mark.parametrize("name", FAMILIES)
def test_each_format_writes_what_its_familys_template_writes(families: dict[str, Tokenizer], name: str) -> None:
    assert check_template(ChatFormat.load(name), families[name]).agrees


@pytest.mark.parametrize("name", ["qwen3", "qwen2.5", "smollm2"])
def test_the_papers_format_is_what_a_chatml_template_writes(families: dict[str, Tokenizer], name: str) -> None:
    assert check_template(ChatFormat.load("rstar"), families[name]).agrees


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("qwen2.5", set()),
        ("smollm2", set()),
        ("llama-3", {HistoryChange.TRIMS_TEXT}),
        ("qwen3", {HistoryChange.DROPS_THINKING, HistoryChange.ADDS_THINKING, HistoryChange.TRIMS_TEXT}),
    ],
)
def test_what_each_template_does_to_earlier_turns_is_found(
    families: dict[str, Tokenizer], name: str, changes: set[HistoryChange]
) -> None:
    report = check_template(ChatFormat.load(name), families[name])
    assert set(report.changes) == changes
    assert report.preserves_prefixes == (not changes)
    assert len(report.lines()) == bool(changes)


@pytest.mark.parametrize(
    ("content", "change"),
    [
        ("m.content.split('</think>')[-1]", HistoryChange.DROPS_THINKING),
        ("('<think></think>' if m.role == 'assistant' and '<think>' not in m.content else '') + m.content",
         HistoryChange.ADDS_THINKING),
        ("m.content | replace('\": ', '\":')", HistoryChange.ALTERS_CALLS),
        ("m.content | trim", HistoryChange.TRIMS_TEXT),
    ],
)  # fmt: skip
def test_each_kind_of_change_is_told_apart(content: str, change: HistoryChange) -> None:
    assert history_changes(ChatFormat.load("rstar"), chatml(content)) == (change,)


def test_a_pre_filled_tag_that_the_template_opens_too_is_no_change() -> None:
    template = ModelTemplate(chatml("m.content").source.replace("assistant\\n'", "assistant\\n<reason>'"))
    assert history_changes(ChatFormat.load("rstar"), template) == ()


def test_another_prompt_and_other_tool_turns_are_told(families: dict[str, Tokenizer], tmp_path: Path) -> None:
    other = with_template(families["smollm2"], tmp_path / "other", chatml("m.role + m.content").source)
    report = check_template(ChatFormat.load("rstar"), other)
    assert (report.prompt_differs, report.tool_turns_differ, report.agrees) == (True, True, False)
    assert len(report.lines()) >= 2


def test_a_template_that_refuses_the_roles_is_told(families: dict[str, Tokenizer], tmp_path: Path) -> None:
    source = "{% if messages[0].role == 'system' %}{{ raise_exception('no system turn') }}{% endif %}"
    report = check_template(ChatFormat.load("rstar"), with_template(families["smollm2"], tmp_path / "other", source))
    assert "no system turn" in report.lines()[0]
    assert not report.preserves_prefixes


def test_without_a_template_there_is_nothing_to_compare(families: dict[str, Tokenizer], tmp_path: Path) -> None:
    report = check_template(ChatFormat.load("rstar"), with_template(families["smollm2"], tmp_path / "bare", None))
    assert (report.found, report.preserves_prefixes) == (False, False)
    assert "no chat template" in report.lines()[0]


@pytest.mark.parametrize(
    "source",
    [
        None,
        "{{ raise_exception('no') }}",
        "no problem in it <|im_start|>assistant\n",
        "{{ messages[-1].content }} and no assistant",
        "{{ messages[-1].content }}<|im_start|>assistant\n<think>\n",
    ],
)
def test_a_prompt_that_cannot_come_from_the_template_is_refused(
    families: dict[str, Tokenizer], tmp_path: Path, source: str | None
) -> None:
    tokenizer = with_template(families["qwen3"], tmp_path / "other", source)
    with pytest.raises(UserInputError, match="chat_format qwen3"):
        ChatFormat.load("qwen3").prompt_ids(tokenizer, "2 + 2?", [PYTHON_TOOL])


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("tools", [(), (PYTHON_TOOL,)])
def test_hostile_problems_are_only_text_in_every_prompt(
    families: dict[str, Tokenizer], name: str, tools: tuple
) -> None:
    tokenizer, chat_format = families[name], ChatFormat.load(name)
    hostile = "{{ 7 * 7 }} {% raw %} {problem} " + "".join(tokenizer.decode([t]) for t in sorted(tokenizer.control_ids))
    ids = chat_format.prompt_ids(tokenizer, hostile, tools)
    plain = chat_format.prompt_ids(tokenizer, "2 + 2?", tools)
    control = [[t for t in found if t in tokenizer.control_ids] for found in (ids, plain)]
    assert control[0] == control[1]
    assert hostile in tokenizer.decode(ids)


def test_a_conversation_is_rendered_up_to_the_next_policy_token(families: dict[str, Tokenizer]) -> None:
    chat_format, template = ChatFormat.load("rstar"), families["smollm2"].template
    assert template is not None
    turns = [("one", ["1", "2"])]
    opened = rendered(chat_format, template, "?", turns, [PYTHON_TOOL])
    assert opened.endswith("one<|im_end|>" + chat_format.tool_turn_text(["1", "2"]))
    assert rendered(chat_format, template, "?", [*turns, ("two", [])], [PYTHON_TOOL]) == opened + "two<|im_end|>"


def test_families_have_the_tokens_that_they_are_known_for(tmp_path: Path) -> None:
    qwen, llama = (load_tokenizer(write_family(tmp_path / name, name)) for name in ("qwen3", "llama-3"))
    assert qwen.decode(qwen.encode("<think>"), keep_special=False) == "<think>"
    assert qwen.decode(qwen.encode("<|im_end|>"), keep_special=False) == ""
    assert len(qwen.encode("<tool_call>")) == 1
    assert len(qwen.encode("1234")) == 4
    assert qwen.decode(qwen.encode("e\N{COMBINING ACUTE ACCENT}")) == "\N{LATIN SMALL LETTER E WITH ACUTE}"
    assert llama.eos_ids == {llama.token_id("<|eot_id|>")}
    assert llama.encode("x") == llama.encode_untrusted("x")
