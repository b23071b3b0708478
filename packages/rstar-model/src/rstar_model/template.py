"""The chat template that comes with a model, as a function from messages to text.

Rollouts never render a conversation again: what the policy wrote stays as tokens. The model's own template is used
for the prompt where a format says so, and to find out at start-up how far the template and the format agree.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from rstar_model.tools import ToolSpec
from rstar_protos.errors import RStarError, UserInputError

__all__ = ["Message", "ModelTemplate", "TemplateError", "load_template"]

Message = Mapping[str, str]
"""``role`` and ``content``."""


class TemplateError(RStarError):
    """The template is not valid, or refuses a conversation."""


class _Generation(jinja2.ext.Extension):
    """``{% generation %}`` marks what a model wrote; the text inside is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it as a set

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        """The nodes between the two tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


@dataclass(frozen=True)
class ModelTemplate:
    """A Jinja chat template.

    Args:
        source: text of the template.
        bos_token: what the template calls ``bos_token``.
        eos_token: what the template calls ``eos_token``.
    """

    source: str
    bos_token: str = ""
    eos_token: str = ""

    @cached_property
    def _compiled(self) -> jinja2.Template:
        # Templates come with weights from anywhere, so they run where they can reach nothing. No clock is offered:
        # a prompt that holds today's date would make a run of tomorrow another one.
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        try:
            return environment.from_string(self.source)
        except jinja2.TemplateError as error:
            raise TemplateError(f"not a valid chat template: {error}") from error

    def render(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] = (), *, add_generation_prompt: bool = False
    ) -> str:
        """The conversation as the template writes it.

        Raises:
            TemplateError: the template is not valid or refuses these messages.
        """
        functions = [{"type": "function", "function": tool.signature()} for tool in tools]
        try:
            return self._compiled.render(
                messages=[dict(message) for message in messages],
                tools=functions or None,
                add_generation_prompt=add_generation_prompt,
                bos_token=self.bos_token,
                eos_token=self.eos_token,
            )
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
            raise TemplateError(f"the chat template refuses the conversation: {error}") from error


def load_template(folder: Path) -> ModelTemplate | None:
    """The template of a Hugging Face folder, None if it has none.

    Raises:
        UserInputError: a settings file that is not JSON.
    """
    settings_file = folder / "tokenizer_config.json"
    settings: dict[str, Any] = {}
    if settings_file.is_file():
        try:
            settings = json.loads(settings_file.read_text(encoding="utf-8"))
        except ValueError as error:
            raise UserInputError("tokenizer_config.json", str(error), "a JSON object") from error
    source = settings.get("chat_template")
    if isinstance(source, list):  # several templates by name
        named = {entry.get("name"): entry.get("template") for entry in source}
        source = named.get("tool_use") or named.get("default")
    own_file = folder / "chat_template.jinja"
    if own_file.is_file():
        source = own_file.read_text(encoding="utf-8")
    if not isinstance(source, str) or not source:
        return None
    return ModelTemplate(source, _text(settings.get("bos_token")), _text(settings.get("eos_token")))


def _text(token: object) -> str:
    """A token is given as its text or as an object that holds it."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""


def _to_json(value: object, indent: int | None = None, **options: Any) -> str:
    """Without Jinja's HTML escapes, which no model was trained on."""
    return json.dumps(value, ensure_ascii=False, indent=indent, **options)


def _refuse(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
