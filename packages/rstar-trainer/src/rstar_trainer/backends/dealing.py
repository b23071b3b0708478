"""Which rank computes which sequences of a batch, and in how many passes.

Every rank works this out for itself from the whole batch, so that nothing has to be agreed on. All ranks make the same
number of passes: with sharded parameters each pass is a collective, and a rank without work still has to take part.
"""

from __future__ import annotations

from collections.abc import Sequence

from rstar_model.packing import split_by_tokens

__all__ = ["deal", "passes_of_each_rank"]


def deal(lengths: Sequence[int], ranks: int) -> list[list[int]]:
    """Cuts a batch into one run of neighbouring sequences for each rank, about equally many tokens each.

    Neighbours stay together because the rollouts of a group share their prompt, which is computed once.

    Args:
        lengths: tokens of each sequence.
        ranks: at least 1.

    Returns:
        Indices of each rank's sequences, in order; empty for a rank when there are fewer sequences than ranks.
    """
    shares: list[list[int]] = [[] for _ in range(ranks)]
    total, before = sum(lengths), 0
    for index, length in enumerate(lengths):
        # The rank in whose part of all tokens the middle of the sequence lies.
        middle = before + length / 2
        shares[min(ranks - 1, int(middle * ranks / total)) if total else 0].append(index)
        before += length
    return shares


def passes_of_each_rank(lengths: Sequence[int], shares: Sequence[Sequence[int]], max_tokens: int) -> list[int]:
    """Micro-batches that `split_by_tokens` makes of each rank's share."""
    return [len(split_by_tokens([lengths[index] for index in share], max_tokens)) for share in shares]
