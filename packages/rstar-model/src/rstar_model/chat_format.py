"""How a conversation is written as tokens. A format is data (``formats/*.toml``), not code.

Two things are ever rendered: the prompt, once, and the tokens between two policy turns. What the policy wrote is
never rendered again; the token ledger keeps its ids.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from rstar_model.template import Message, ModelTemplate, TemplateError
from rstar_model.tokenizer import Piece, Tokenizer
from rstar_model.tool_calls import ToolCallParser
from rstar_model.tools import ToolSpec
from rstar_model.types import SpanKind
from rstar_protos.errors import UserInputError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["ChatFormat", "Roles", "TemplateUse"]


class Roles(BaseModel):
    """The names of the four speakers in a turn header."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    system: str = "system"
    user: str = "user"
    assistant: str = "assistant"
    tool: str = "tool"
    """Who brings tool responses; several formats use the user."""


class TemplateUse(BaseModel):
    """How the model's own chat template is given a conversation of this format."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    prompt: bool = False
    """Take the prompt from the template, which names the tools in the words that the model was trained on."""
    tool_role: str = ""
    """Role of a message that brings one bare tool response. Empty: one message of the format's own tool role brings
    all responses of a turn, written as the format writes them."""


class ChatFormat(BaseModel):
    """One conversation format. Placeholders in braces appear exactly once in their field."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    begin: str = ""
    """What opens a conversation, such as a begin-of-text token."""
    turn_header: str
    """Opens a turn; holds ``{role}``."""
    end_of_turn: str
    """The control token that ends a turn, the policy's turns too."""
    turn_separator: str = ""
    """What the template puts after an end-of-turn token."""
    turn_prefill: str = ""
    """What every assistant turn is made to start with."""
    trims_turns: bool = False
    """White space around the text of a turn is left out, as the model's template does."""
    system_prompt: str
    """Text of the system turn; without tools all of it. Empty without tools: no system turn."""
    tools_prompt: str
    """Follows ``system_prompt`` when there are tools; holds ``{tools}``, one JSON signature a line."""
    user_template: str
    """The user turn; holds ``{problem}``."""
    tool_call_open: str = "<tool_call>"
    tool_call_close: str = "</tool_call>"
    tool_response_template: str
    """One tool response; holds ``{response}``."""
    tool_response_separator: str = "\n"
    """Between the responses of one turn."""
    truncation_mark: str = "\n... {omitted} tokens left out ...\n"
    """Stands in the middle of a tool response that was cut."""
    answer_open: str = "<answer>"
    answer_close: str = "</answer>"
    roles: Roles = Field(default_factory=Roles)
    template: TemplateUse = Field(default_factory=TemplateUse)

    @field_validator("turn_header", "tools_prompt", "user_template", "tool_response_template")
    @classmethod
    def _holds_placeholder(cls, value: str, info: Any) -> str:
        placeholder = _PLACEHOLDERS[info.field_name]
        if value.count(placeholder) != 1:
            raise ValueError(f"must hold {placeholder} exactly once")
        return value

    @classmethod
    def load(cls, name: str | Path) -> ChatFormat:
        """A format by its name among those shipped, or from a TOML file (a path or a name ending in ``.toml``).

        Raises:
            UserInputError: no such format, or a field that is wrong.
        """
        if isinstance(name, Path) or name.endswith(".toml"):
            path = Path(name)
            if not path.is_file():
                raise UserInputError("chat_format", str(name), "an existing TOML file")
            return cls._from_toml(path.read_text(encoding="utf-8"), str(name))
        if name not in cls.available():
            raise UserInputError("chat_format", name, "one of " + ", ".join(cls.available()) + ", or a .toml file")
        shipped = resources.files("rstar_model") / "formats" / f"{name}.toml"
        return cls._from_toml(shipped.read_text(encoding="utf-8"), name)

    @staticmethod
    def available() -> list[str]:
        """Names of the formats shipped with this package."""
        folder = resources.files("rstar_model") / "formats"
        return sorted(file.name[:-5] for file in folder.iterdir() if file.name.endswith(".toml"))

    @classmethod
    def _from_toml(cls, text: str, source: str) -> ChatFormat:
        try:
            return cls(**tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            raise UserInputError("chat_format", f"{source}: {error}", "a TOML file") from error
        except ValidationError as error:
            first = error.errors()[0]
            field = ".".join(str(part) for part in first["loc"])
            raise UserInputError(f"chat_format {field}", source, f"a value that fits ({first['msg']})") from error

    def prompt_text(self, problem: str, tools: Sequence[ToolSpec] = (), template: ModelTemplate | None = None) -> str:
        """The prompt as text, up to and including the pre-filled start of the first assistant turn.

        Args:
            problem: text of the user turn.
            tools: what the policy may call.
            template: of the model; needed by a format that takes its prompt from there.

        Raises:
            UserInputError: the template is missing or does not fit the format.
        """
        return "".join(text for text, _ in self._prompt_pieces(problem, tools, template))

    def prompt_ids(self, tokenizer: Tokenizer, problem: str, tools: Sequence[ToolSpec] = ()) -> list[int]:
        """Ids of ``prompt_text``; the problem and the signatures cannot become control tokens."""
        ids, _ = tokenizer.encode_pieces(self._prompt_pieces(problem, tools, tokenizer.template))
        return ids

    def prompt_spans(
        self, tokenizer: Tokenizer, problem: str, tools: Sequence[ToolSpec] = ()
    ) -> list[tuple[SpanKind, list[int]]]:
        """``prompt_ids`` cut into the PROMPT and the TEMPLATE tokens that open the first assistant turn."""
        pieces = self._prompt_pieces(problem, tools, tokenizer.template)
        kinds = [SpanKind.PROMPT] * (len(pieces) - 1) + [SpanKind.TEMPLATE]
        return _spans(tokenizer, pieces, kinds)

    def messages(
        self, problem: str, turns: Sequence[tuple[str, Sequence[str]]] = (), tools: Sequence[ToolSpec] = ()
    ) -> list[Message]:
        """A conversation as the messages that the model's own template takes.

        Args:
            problem: text of the user turn.
            turns: text of each policy turn, without the pre-filled tag and the end-of-turn token, and the tool
                responses that follow it.
            tools: offered; where the template writes the prompt they are left to it.
        """
        system = self.system_prompt if self.template.prompt else _joined(self._system_pieces(tools))
        messages: list[Message] = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": _joined(self._user_pieces(problem))})
        for text, responses in turns:
            messages.append({"role": "assistant", "content": self.turn_prefill + text})
            if self.template.tool_role:
                messages += [{"role": self.template.tool_role, "content": response} for response in responses]
            elif responses:
                pieces, _ = self._response_pieces(responses)
                messages.append({"role": self.roles.tool, "content": _joined(pieces)})
        return messages

    def tool_turn_spans(
        self,
        tokenizer: Tokenizer,
        responses: Sequence[str],
        max_tokens: int | None = None,
        *,
        turn_closed: bool = True,
    ) -> list[tuple[SpanKind, list[int]]]:
        """Tokens between a policy turn and the next one: separator, tool responses, header and pre-filled tag.

        Args:
            tokenizer: of the policy.
            responses: one text per call, in the order of the calls; anybody's text.
            max_tokens: most tokens of one response; a longer one is cut in the middle. None: no limit.
            turn_closed: the policy emitted the end-of-turn token itself; otherwise it is put in as TEMPLATE.
        """
        shown = [self.truncated(tokenizer, text, max_tokens)[0] for text in responses]
        pieces, kinds = self._tool_turn_pieces(shown, turn_closed)
        return _spans(tokenizer, pieces, kinds)

    def tool_turn_text(self, responses: Sequence[str], *, turn_closed: bool = True) -> str:
        """The text of ``tool_turn_spans``, nothing cut."""
        return _joined(self._tool_turn_pieces(responses, turn_closed)[0])

    def truncated(self, tokenizer: Tokenizer, text: str, max_tokens: int | None) -> tuple[str, bool]:
        """A tool response cut in the middle to ``max_tokens`` tokens, and whether it was cut.

        A visible mark stands where text is missing and comes on top of the limit.
        """
        if max_tokens is None or max_tokens <= 0:
            return text, False
        ids = tokenizer.encode_untrusted(text)
        if len(ids) <= max_tokens:
            return text, False
        head = (max_tokens + 1) // 2
        tail = max_tokens - head
        mark = self.truncation_mark.replace("{omitted}", str(len(ids) - max_tokens))
        before, after = tokenizer.decode(ids[:head]), tokenizer.decode(ids[len(ids) - tail :])
        # A cut between the tokens of one character leaves half of it on either side.
        if not text.startswith(before):
            before = before.rstrip(_BROKEN)
        if not text.endswith(after):
            after = after.lstrip(_BROKEN)
        return before + mark + after, True

    def stop_ids(self, tokenizer: Tokenizer) -> frozenset[int]:
        """Tokens that end a policy turn: the format's end-of-turn token and the tokenizer's own end tokens.

        Raises:
            UserInputError: the tokenizer does not know the end-of-turn token as one token.
        """
        return tokenizer.eos_ids | {self.end_of_turn_id(tokenizer)}

    def end_of_turn_id(self, tokenizer: Tokenizer) -> int:
        """Id of the end-of-turn token.

        Raises:
            UserInputError: the tokenizer does not know it as one control token.
        """
        token = tokenizer.token_id(self.end_of_turn)
        if token is None or token not in tokenizer.control_ids:
            raise UserInputError(
                f"chat_format {self.name}",
                f"end of turn {self.end_of_turn!r}",
                "a format whose end-of-turn text is a control token of the model",
            )
        return token

    def parser(self) -> ToolCallParser:
        """The parser for calls in this format."""
        return ToolCallParser(self.tool_call_open, self.tool_call_close)

    def tool_call_text(self, name: str, arguments: Mapping[str, Any]) -> str:
        """A call as the policy is taught to write it."""
        call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
        return f"{self.tool_call_open}{call}{self.tool_call_close}"

    def count_answer_tags(self, policy_text: str) -> int:
        """Opening answer tags in the text that the policy wrote."""
        return policy_text.count(self.answer_open)

    def _header(self, role: str) -> str:
        return self.turn_header.replace("{role}", role)

    def _assistant_opening(self) -> str:
        return self._header(self.roles.assistant) + self.turn_prefill

    def _system_pieces(self, tools: Sequence[ToolSpec]) -> list[Piece]:
        pieces: list[Piece] = [(self.system_prompt, True)]
        if tools:
            before, after = self.tools_prompt.split("{tools}")
            signatures = "\n".join(tool.signature_json() for tool in tools)
            pieces += [(before, True), (signatures, False), (after, True)]
        return self._turn_text(pieces)

    def _user_pieces(self, problem: str) -> list[Piece]:
        before, after = self.user_template.split("{problem}")
        return self._turn_text([(before, True), (problem, False), (after, True)])

    def _tool_turn_pieces(self, responses: Sequence[str], turn_closed: bool) -> tuple[list[Piece], list[SpanKind]]:
        opening = "" if turn_closed else self.end_of_turn
        content, kinds = self._response_pieces(responses)
        pieces = [
            (opening + self.turn_separator + self._header(self.roles.tool), True),
            *content,
            (self.end_of_turn + self.turn_separator + self._assistant_opening(), True),
        ]
        return pieces, [SpanKind.TEMPLATE, *kinds, SpanKind.TEMPLATE]

    def _response_pieces(self, responses: Sequence[str]) -> tuple[list[Piece], list[SpanKind]]:
        """Text of a tool turn and the kind of each piece."""
        before, after = self.tool_response_template.split("{response}")
        pieces: list[Piece] = []
        kinds: list[SpanKind] = []
        for index, text in enumerate(responses):
            separator = self.tool_response_separator if index else ""
            pieces += [(separator + before, True), (text, False), (after, True)]
            kinds += [SpanKind.TEMPLATE, SpanKind.TOOL, SpanKind.TEMPLATE]
        return self._turn_text(pieces), kinds

    def _turn_text(self, pieces: list[Piece]) -> list[Piece]:
        """The pieces of one turn, without the white space around the whole where the format leaves it out."""
        if not self.trims_turns:
            return pieces
        for place in range(len(pieces)):
            text, trusted = pieces[place]
            pieces[place] = (text.lstrip(), trusted)
            if pieces[place][0]:
                break
        for place in reversed(range(len(pieces))):
            text, trusted = pieces[place]
            pieces[place] = (text.rstrip(), trusted)
            if pieces[place][0]:
                break
        return pieces

    def _prompt_pieces(self, problem: str, tools: Sequence[ToolSpec], template: ModelTemplate | None) -> list[Piece]:
        """The prompt in pieces; the last is the opening of the assistant turn."""
        if self.template.prompt:
            return self._template_pieces(problem, tools, template)
        end = (self.end_of_turn + self.turn_separator, True)
        pieces: list[Piece] = [(self.begin, True)]
        system = self._system_pieces(tools)
        if _joined(system):
            pieces += [(self._header(self.roles.system), True), *system, end]
        pieces += [(self._header(self.roles.user), True), *self._user_pieces(problem), end]
        return [*pieces, (self._assistant_opening(), True)]

    def _template_pieces(self, problem: str, tools: Sequence[ToolSpec], template: ModelTemplate | None) -> list[Piece]:
        """The prompt as the model's own template writes it; only the problem in it is somebody else's text."""
        name = f"chat_format {self.name}"
        if template is None:
            raise UserInputError(
                name, "no chat template", "a model folder with the template that the prompt is taken from"
            )
        messages = self.messages(_MARK, (), tools)
        try:
            text = template.render(messages, tools, add_generation_prompt=True)
        except TemplateError as error:
            raise UserInputError(name, str(error), "a model folder whose template takes this format") from error
        before, mark, after = text.partition(_MARK)
        header = self._header(self.roles.assistant)
        rest, opening, prefill = after.rpartition(header)
        if not mark or not opening:
            found = "its prompt has no problem or opens no assistant turn as this format does"
            raise UserInputError(name, found, "a model folder whose template takes this format")
        if prefill not in ("", self.turn_prefill):
            found = f"its prompt begins the assistant's turn with {prefill!r}"
            raise UserInputError(name, found, f"a model folder whose template begins it with {self.turn_prefill!r}")
        problem = problem.strip() if self.trims_turns else problem
        return [(before, True), (problem, False), (rest, True), (self._assistant_opening(), True)]


_BROKEN = "\N{REPLACEMENT CHARACTER}"
_MARK = "\N{OBJECT REPLACEMENT CHARACTER}problem\N{OBJECT REPLACEMENT CHARACTER}"
"""Stands for the problem while the template is rendered, so that nothing in a problem is read by the template."""

_PLACEHOLDERS = {
    "turn_header": "{role}",
    "tools_prompt": "{tools}",
    "user_template": "{problem}",
    "tool_response_template": "{response}",
}


def _joined(pieces: Sequence[Piece]) -> str:
    return "".join(text for text, _ in pieces)


def _spans(
    tokenizer: Tokenizer, pieces: Sequence[Piece], kinds: Sequence[SpanKind]
) -> list[tuple[SpanKind, list[int]]]:
    """Encode the pieces together; neighbouring tokens of one kind form a span.

    A token that reaches over a border belongs to the piece where it starts.
    """
    ids, owners = tokenizer.encode_pieces(pieces)
    spans: list[tuple[SpanKind, list[int]]] = []
    for token, owner in zip(ids, owners, strict=True):
        kind = kinds[owner]
        if spans and spans[-1][0] is kind:
            spans[-1][1].append(token)
        else:
            spans.append((kind, [token]))
    return spans
