"""A ledger token by token as plain lines, for seeing which tokens carry loss."""

from __future__ import annotations

from collections.abc import Iterator

from rstar_model.ledger import TokenLedger
from rstar_model.tokenizer import Tokenizer

__all__ = ["token_lines"]


def token_lines(ledger: TokenLedger, tokenizer: Tokenizer) -> Iterator[str]:
    """One line a token: index, id, kind, 1 where it carries loss, its text as a Python literal."""
    yield f"{'#':>6} {'id':>7} {'kind':<8} loss  token"
    columns = zip(ledger.token_ids, ledger.kinds, ledger.loss_mask, strict=True)
    for index, (token, kind, loss) in enumerate(columns):
        yield f"{index:>6} {token:>7} {kind.value:<8} {int(loss):>4}  {tokenizer.decode([token])!r}"
    share = ledger.policy_length / max(1, len(ledger))
    yield f"{len(ledger)} tokens, {ledger.policy_length} with loss ({share:.0%})"
