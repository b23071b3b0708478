from __future__ import annotations

import json
from pathlib import Path

import pytest

from rstar_model.template import ModelTemplate, TemplateError, load_template
from rstar_model.tools import PYTHON_TOOL
from rstar_protos.errors import UserInputError

HELLO = [{"role": "user", "content": "<b> & 'hello' \N{SNOWMAN}"}]


def test_a_template_sees_messages_tools_and_tokens() -> None:
    template = ModelTemplate(
        "{{ bos_token }}{% for t in tools %}{{ t.function.name }} {% endfor %}"
        "{% for m in messages %}{{ m.role }}: {{ m['content'] }}{% endfor %}{{ eos_token }}"
        "{% if add_generation_prompt %}>{% endif %}",
        "<s>",
        "</s>",
    )
    text = template.render(HELLO, [PYTHON_TOOL], add_generation_prompt=True)
    assert text == f"<s>{PYTHON_TOOL.name} user: {HELLO[0]['content']}</s>>"


def test_json_is_not_escaped_for_web_pages() -> None:
    assert ModelTemplate("{{ messages[0] | tojson }}").render(HELLO) == json.dumps(HELLO[0], ensure_ascii=False)


def test_no_tools_are_none_for_the_template() -> None:
    assert ModelTemplate("{{ tools is none }}").render(HELLO, ()) == "True"


def test_marks_around_what_the_model_wrote_leave_no_trace() -> None:
    assert ModelTemplate("a{% generation %}b{% endgeneration %}c").render(HELLO) == "abc"


@pytest.mark.parametrize(
    "source",
    [
        "{% for %}",
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[0].content + 1 }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ strftime_now('%Y') }}",
    ],
)
def test_what_a_template_must_not_do_is_an_error_of_its_own(source: str) -> None:
    with pytest.raises(TemplateError):
        ModelTemplate(source).render(HELLO)


def write(folder: Path, settings: object, own_file: str | None = None) -> Path:
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if own_file is not None:
        (folder / "chat_template.jinja").write_text(own_file)
    return folder


def test_the_template_is_found_in_the_settings(tmp_path: Path) -> None:
    settings = {"chat_template": "x", "bos_token": {"content": "<s>"}, "eos_token": "</s>"}
    assert load_template(write(tmp_path, settings)) == ModelTemplate("x", "<s>", "</s>")


def test_a_file_of_its_own_comes_before_the_settings(tmp_path: Path) -> None:
    assert load_template(write(tmp_path, {"chat_template": "x"}, "y")) == ModelTemplate("y")


def test_of_several_templates_the_one_for_tools_is_taken(tmp_path: Path) -> None:
    several = [{"name": "default", "template": "x"}, {"name": "tool_use", "template": "y"}]
    assert load_template(write(tmp_path, {"chat_template": several})) == ModelTemplate("y")


@pytest.mark.parametrize("settings", [{}, {"chat_template": None}, {"chat_template": []}])
def test_a_folder_may_have_no_template(tmp_path: Path, settings: object) -> None:
    assert load_template(write(tmp_path, settings)) is None


def test_settings_that_are_no_json_are_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(UserInputError, match=r"tokenizer_config\.json"):
        load_template(tmp_path)
