"""Conversations to learn from: public tool-call and chat data sets in the project's own tool-call format.

A reader turns each row of a file, whatever its layout, into a `Conversation` or says why it is left out; rendering
turns a conversation into a token ledger in which only assistant text carries loss.
"""

from rstar_trainer.demonstrations.conversation import (
    AssistantTurn,
    Call,
    Conversation,
    DroppedRowError,
    ToolTurn,
    UserTurn,
)
from rstar_trainer.demonstrations.reader import ReadReport, read_conversations, write_conversations
from rstar_trainer.demonstrations.rendering import conversation_ledger
from rstar_trainer.demonstrations.view import token_lines

__all__ = [
    "AssistantTurn",
    "Call",
    "Conversation",
    "DroppedRowError",
    "ReadReport",
    "ToolTurn",
    "UserTurn",
    "conversation_ledger",
    "read_conversations",
    "token_lines",
    "write_conversations",
]
