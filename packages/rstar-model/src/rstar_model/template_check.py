"""How far a model's own chat template and a chat format agree, found out by rendering small conversations.

A template preserves prefixes if rendering a longer conversation only ever adds text after the policy's earlier
turns. Qwen3's does not: it drops thinking from answers before the last question. Whoever rebuilds a rollout's tokens
with such a template trains on tokens that the policy never saw; rollouts here go on from the stored tokens whatever
the template does, and this check says when the two would differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from rstar_model.chat_format import ChatFormat
from rstar_model.template import Message, ModelTemplate, TemplateError
from rstar_model.tokenizer import Tokenizer
from rstar_model.tools import PYTHON_TOOL, ToolSpec

__all__ = ["HistoryChange", "TemplateReport", "check_template", "history_changes", "rendered"]

Turn = tuple[str, Sequence[str]]


class HistoryChange(str, Enum):
    """What a template does to an earlier turn of the policy when it renders the conversation again."""

    DROPS_THINKING = "drops_thinking"
    """Thinking of an answer is missing once another question follows."""
    ADDS_THINKING = "adds_thinking"
    """A turn without thinking gets some, be it empty."""
    ALTERS_CALLS = "alters_calls"
    """A turn with a tool call looks otherwise once its result has come."""
    TRIMS_TEXT = "trims_text"
    """White space at the edges of a turn is lost."""


@dataclass(frozen=True)
class TemplateReport:
    """What `check_template` found. Without a template in the folder there is nothing to compare."""

    found: bool
    changes: tuple[HistoryChange, ...] = ()
    """Empty: the template preserves prefixes."""
    prompt_differs: bool = False
    """The template writes another prompt than the format."""
    tool_turns_differ: bool = False
    """The template writes other text between two policy turns than the format."""
    refusal: str = ""
    """Why the template could not render the conversations at all."""

    @property
    def preserves_prefixes(self) -> bool:
        """Whether a rollout's text is what the template itself renders, whatever the policy writes."""
        return self.found and not (self.changes or self.refusal)

    @property
    def agrees(self) -> bool:
        """Whether prompt and tool turns of the format are the template's own."""
        return self.found and not (self.prompt_differs or self.tool_turns_differ or self.refusal)

    def lines(self) -> list[str]:
        """What there is to tell, in words; empty if format and template agree in all."""
        if not self.found:
            return ["the model has no chat template: rollouts follow the chat format alone"]
        told = []
        if self.refusal:
            told.append(f"the model's template does not take the chat format's conversations: {self.refusal}")
        if self.prompt_differs:
            told.append("the model's template writes another prompt than the chat format, which is followed")
        if self.tool_turns_differ:
            told.append("the model's template writes other tool turns than the chat format, which is followed")
        if self.changes:
            names = ", ".join(change.value for change in self.changes)
            told.append(f"the model's template does not preserve earlier turns ({names}): stored tokens are used")
        return told


def rendered(
    chat_format: ChatFormat,
    template: ModelTemplate,
    problem: str,
    turns: Sequence[Turn] = (),
    tools: Sequence[ToolSpec] = (),
) -> str:
    """A conversation as the model's own template writes it, as far as a rollout's tokens go.

    It ends with the end-of-turn token of the last policy turn or, if tool responses follow that, with the opening of
    the next turn, pre-filled tag included.

    Args:
        chat_format: makes the messages.
        template: of the model.
        problem: text of the user turn.
        turns: see `ChatFormat.messages`.
        tools: offered to the policy.

    Raises:
        TemplateError: the template refuses the messages.
    """
    messages = chat_format.messages(problem, turns, tools)
    text = _render(chat_format, template, messages, tools)
    if messages[-1]["role"] == chat_format.roles.assistant:
        return text.removesuffix(chat_format.turn_separator)
    return text + chat_format.turn_prefill


def history_changes(chat_format: ChatFormat, template: ModelTemplate) -> tuple[HistoryChange, ...]:
    """What the template does to turns of the policy, by a small conversation for each kind.

    Raises:
        TemplateError: the template refuses these conversations.
    """
    call = chat_format.tool_call_text(PYTHON_TOOL.name, {"code": "print(1)"})
    thought = "<think>\nA plan.\n</think>\n\n"
    one = chat_format.messages("1?", [("One.", [])])
    thinking = chat_format.messages("1?", [(thought + "One.", [])])
    called = chat_format.messages("1?", [(thought + call, ["1"])])
    question = {"role": chat_format.roles.user, "content": "2?"}

    def kept(messages: Sequence[Message]) -> bool:
        return _keeps_turns(chat_format, template, messages)

    def trims(spaced: str, plain: Sequence[Message]) -> bool:
        return kept(plain) and not kept(chat_format.messages("1?", [(spaced, [])]))

    found = {
        HistoryChange.DROPS_THINKING: not kept([*thinking, question]),
        HistoryChange.ADDS_THINKING: not kept([*one, question]),
        HistoryChange.ALTERS_CALLS: kept(thinking) and not kept(called),
        HistoryChange.TRIMS_TEXT: trims(" \n One. \n ", one) or trims(thought + "\n\nOne.\n\n", thinking),
    }
    return tuple(change for change, happens in found.items() if happens)


def check_template(chat_format: ChatFormat, tokenizer: Tokenizer) -> TemplateReport:
    """Compare the template in the tokenizer's folder with the format.

    Raises:
        UserInputError: the format takes its prompt from the template, and that does not work.
    """
    template = tokenizer.template
    tools = (PYTHON_TOOL,)
    prompt = chat_format.prompt_text("1 + 1?", tools, template)
    if template is None:
        return TemplateReport(found=False)
    call = chat_format.tool_call_text(PYTHON_TOOL.name, {"code": "print(1)"})
    try:
        changes = history_changes(chat_format, template)
        theirs = rendered(chat_format, template, "1 + 1?", (), tools)
        after_call = rendered(chat_format, template, "1 + 1?", [(call, ["2", "3"])], tools)
    except TemplateError as error:
        return TemplateReport(found=True, refusal=str(error))
    return TemplateReport(
        found=True,
        changes=changes,
        prompt_differs=prompt != theirs,
        tool_turns_differ=not after_call.endswith(
            call + chat_format.end_of_turn + chat_format.tool_turn_text(["2", "3"])
        ),
    )


def _render(
    chat_format: ChatFormat, template: ModelTemplate, messages: Sequence[Message], tools: Sequence[ToolSpec] = ()
) -> str:
    """The template's text; an opened turn is left without a pre-filled tag, whoever would write it."""
    opens = messages[-1]["role"] != chat_format.roles.assistant
    offered = tools if chat_format.template.prompt else ()
    text = template.render(messages, offered, add_generation_prompt=opens)
    return text.removesuffix(chat_format.turn_prefill) if opens and chat_format.turn_prefill else text


def _keeps_turns(chat_format: ChatFormat, template: ModelTemplate, messages: Sequence[Message]) -> bool:
    """Whether each policy turn stands where it was written, as it was written, however much has followed."""
    for place, message in enumerate(messages):
        if message["role"] != chat_format.roles.assistant:
            continue
        written = _render(chat_format, template, messages[:place]) + message["content"] + chat_format.end_of_turn
        for end in range(place + 1, len(messages) + 1):
            if not _render(chat_format, template, messages[:end]).startswith(written):
                return False
    return True
