"""A conversation as the tokens that an engine would have seen and produced, in a chat format.

Assistant turns follow the format's pre-filled tag: what is said beside a call stands inside the reasoning tag, a reply
to the user inside the answer tag. Control tokens in anybody's text stay text.
"""

from __future__ import annotations

from rstar_model.chat_format import ChatFormat
from rstar_model.ledger import TokenLedger
from rstar_model.tokenizer import Tokenizer
from rstar_model.types import SpanKind
from rstar_trainer.demonstrations.conversation import AssistantTurn, Conversation, ToolTurn, UserTurn

__all__ = ["conversation_ledger"]


def conversation_ledger(conversation: Conversation, chat_format: ChatFormat, tokenizer: Tokenizer) -> TokenLedger:
    """The ledger of a conversation; POLICY spans are assistant text with its end-of-turn token, and nothing else is.

    Args:
        conversation: checked, as `read_conversations` gives it.
        chat_format: how turns are written.
        tokenizer: of the policy.
    """
    system = "\n\n".join(text for text in (chat_format.system_prompt, conversation.system) if text)
    # The user turn of the format asks for a boxed answer; these conversations are about anything.
    plain = chat_format.model_copy(update={"user_template": "{problem}", "system_prompt": system})
    spoken = chat_format.model_copy(
        update={
            "tool_response_template": "{response}",
            "roles": chat_format.roles.model_copy(update={"tool": chat_format.roles.user}),
        }
    )
    end_of_turn = [chat_format.end_of_turn_id(tokenizer)]
    ledger = TokenLedger(demonstration=True)
    number = 0
    for place, turn in enumerate(conversation.turns):
        if isinstance(turn, AssistantTurn):
            text = _assistant_text(turn, chat_format)
            ledger.append(SpanKind.POLICY, [*tokenizer.encode_untrusted(text), *end_of_turn], turn=number)
            number += 1
        elif isinstance(turn, ToolTurn):
            for kind, ids in chat_format.tool_turn_spans(tokenizer, turn.responses):
                ledger.append(kind, ids, turn=number - 1)
        elif place == 0:
            for kind, ids in plain.prompt_spans(tokenizer, turn.text, conversation.tools):
                ledger.append(kind, ids)
        else:
            _append_user(ledger, turn, spoken, tokenizer, number - 1)
    return ledger


def _append_user(ledger: TokenLedger, turn: UserTurn, spoken: ChatFormat, tokenizer: Tokenizer, number: int) -> None:
    """A later user turn: neither a tool's words nor, as it comes after the first policy turn, part of the prompt."""
    for _, ids in spoken.tool_turn_spans(tokenizer, [turn.text]):
        ledger.append(SpanKind.TEMPLATE, ids, turn=number)


def _assistant_text(turn: AssistantTurn, chat_format: ChatFormat) -> str:
    prefill = chat_format.turn_prefill
    close = f"{prefill.replace('<', '</', 1)}\n" if prefill else ""
    if turn.calls:
        calls = "\n".join(chat_format.tool_call_text(call.name, call.arguments) for call in turn.calls)
        said = turn.text.strip() + ("\n" if turn.text.strip() and not close else "")
        return f"{said}{close}{calls}"
    if not close:
        return turn.text.strip()
    return f"{close}{chat_format.answer_open}{turn.text.strip()}{chat_format.answer_close}"
