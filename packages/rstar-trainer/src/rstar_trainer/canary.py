"""What a policy thinks of a short text, sent along with its weights for engines to compute again.

It tells weights that are wrong altogether - garbled, of another model, a kernel's stale copy - from those that were
sent. A step at a learning rate of 1e-6 moves it less than the rounding of an engine does: that the weights are exactly
the ones sent is for digests to tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from rstar_model.chat_format import ChatFormat
from rstar_model.packing import PackedBatch, TrainingSequence, pack
from rstar_model.policy import LogProbs
from rstar_model.tokenizer import Tokenizer
from rstar_model.tools import PYTHON_TOOL
from rstar_model.weights import Canary

__all__ = ["canary_ids", "sing_canary"]

_PROBLEM = "What is 17 plus 25?"
_MOST_TOKENS = 128


class _Forward(Protocol):
    def forward_log_probs(self, packed: PackedBatch, temperature: float = 1.0) -> LogProbs:
        """As `Policy.forward_log_probs`."""


def canary_ids(chat_format: ChatFormat, tokenizer: Tokenizer) -> tuple[int, ...]:
    """A text like those of training: the first tokens of a prompt."""
    return tuple(chat_format.prompt_ids(tokenizer, _PROBLEM, [PYTHON_TOOL])[:_MOST_TOKENS])


@torch.no_grad()
def sing_canary(policy: _Forward, token_ids: Sequence[int]) -> Canary:
    """The policy's log-probabilities of a text, at temperature 1."""
    mask = [position > 0 for position in range(len(token_ids))]
    packed = pack([TrainingSequence(tuple(token_ids), mask)])
    values = policy.forward_log_probs(packed, temperature=1.0).log_probs[1:]
    return Canary(tuple(token_ids), tuple(values.float().tolist()))
