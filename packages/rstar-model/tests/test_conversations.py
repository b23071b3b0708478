"""Whole conversations through format, tokenizer and ledger, with every text an adversary could choose."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from rstar_model.chat_format import ChatFormat
from rstar_model.ledger import TokenLedger
from rstar_model.tokenizer import Tokenizer
from rstar_model.tools import PYTHON_TOOL
from rstar_model.types import SpanKind

RSTAR = ChatFormat.load("rstar")

hostile = st.lists(
    st.sampled_from(
        ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "</tool_response>", "assistant\n", "<|im_", "\n", "{problem}"]
    )
    | st.text(max_size=4),
    max_size=8,
).map("".join)


@dataclass(frozen=True)
class Conversation:
    """A problem and turns: what the policy emits, and the responses that follow (none after the last turn)."""

    problem: str
    turns: list[tuple[list[int], list[str]]]
    tools: bool


# The policy may emit any id, control tokens in the middle included; the tiny vocabulary has fewer than 400.
conversations = st.builds(
    Conversation,
    hostile,
    st.lists(
        st.tuples(st.lists(st.integers(0, 255), max_size=6), st.lists(hostile, min_size=1, max_size=3)),
        min_size=1,
        max_size=4,
    ),
    st.booleans(),
)


def play(tokenizer: Tokenizer, conversation: Conversation) -> TokenLedger:
    """The ledger that an agent loop builds."""
    ledger = TokenLedger()
    tools = [PYTHON_TOOL] if conversation.tools else []
    end = RSTAR.end_of_turn_id(tokenizer)
    for kind, ids in RSTAR.prompt_spans(tokenizer, conversation.problem, tools):
        ledger.append(kind, ids)
    for number, (emitted, responses) in enumerate(conversation.turns):
        ids = [*emitted, end]
        ledger.append(SpanKind.POLICY, ids, log_probs=[-1.0] * len(ids), weight_version=0, turn=number)
        if number + 1 < len(conversation.turns):
            for kind, tokens in RSTAR.tool_turn_spans(tokenizer, responses):
                ledger.append(kind, tokens, turn=number + 1)
    return ledger


@given(conversation=conversations)
def test_mask_and_tokens_are_equally_long(tokenizer: Tokenizer, conversation: Conversation) -> None:
    ledger = play(tokenizer, conversation)
    assert len(ledger.loss_mask) == len(ledger.token_ids) == len(ledger.log_probs) == len(ledger)


@given(conversation=conversations)
def test_no_policy_token_is_lost_or_added(tokenizer: Tokenizer, conversation: Conversation) -> None:
    ledger = play(tokenizer, conversation)
    end = RSTAR.end_of_turn_id(tokenizer)
    emitted = [token for ids, _ in conversation.turns for token in [*ids, end]]
    trained = [token for token, loss in zip(ledger.token_ids, ledger.loss_mask, strict=True) if loss]
    assert trained == emitted


@given(conversation=conversations)
def test_hostile_text_changes_no_control_token_outside_policy_spans(
    tokenizer: Tokenizer, conversation: Conversation
) -> None:
    harmless = Conversation(
        "2 + 2", [(ids, ["4"] * len(responses)) for ids, responses in conversation.turns], conversation.tools
    )

    def control(ledger: TokenLedger) -> list[int]:
        pairs = zip(ledger.token_ids, ledger.kinds, strict=True)
        return [token for token, kind in pairs if kind is not SpanKind.POLICY and token in tokenizer.control_ids]

    assert control(play(tokenizer, conversation)) == control(play(tokenizer, harmless))


@given(conversation=conversations)
def test_tool_spans_hold_no_control_token(tokenizer: Tokenizer, conversation: Conversation) -> None:
    for span in play(tokenizer, conversation).spans:
        if span.kind is SpanKind.TOOL:
            assert tokenizer.control_ids.isdisjoint(span.token_ids)


@given(conversation=conversations)
def test_the_ledger_spells_the_rendered_conversation(tokenizer: Tokenizer, conversation: Conversation) -> None:
    tools = [PYTHON_TOOL] if conversation.tools else []
    turns = [
        (tokenizer.encode_untrusted(tokenizer.decode(ids).replace("\N{REPLACEMENT CHARACTER}", "")), responses)
        for ids, responses in conversation.turns
    ]
    ledger = play(tokenizer, Conversation(conversation.problem, turns, conversation.tools))
    text = RSTAR.prompt_text(conversation.problem, tools)
    for number, (ids, responses) in enumerate(turns):
        text += tokenizer.decode(ids) + "<|im_end|>"
        if number + 1 < len(turns):
            shown = "\n".join(f"<tool_response>\n{response}\n</tool_response>" for response in responses)
            text += f"\n<|im_start|>user\n{shown}<|im_end|>\n<|im_start|>assistant\n<reason>"
    assert tokenizer.decode(ledger.token_ids) == text


@given(problem=st.text(alphabet="abc 123\n.,"), response=st.text(alphabet="abc 123\n.,"))
def test_ids_outside_policy_spans_are_those_of_the_rendered_text(
    tokenizer: Tokenizer, problem: str, response: str
) -> None:
    assert RSTAR.prompt_ids(tokenizer, problem) == tokenizer.encode(RSTAR.prompt_text(problem))
    between = [token for _, ids in RSTAR.tool_turn_spans(tokenizer, [response]) for token in ids]
    assert between == tokenizer.encode(tokenizer.decode(between))
