"""Ranks that compute each packed row together: every one holds a run of its tokens, DeepSpeed-Ulysses does the rest.

Between two exchanges of heads for tokens (Jacobs et al. 2023, arXiv 2309.14509) each rank has all tokens of some heads,
so attention is the packed one over the whole row, inside its segments. A rank computes the log-probabilities of the
tokens that its own states predict; the others' values arrive without gradient. Gradients of parameters are then shares
of one sum over all ranks, as everywhere in this learner.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF  # type: ignore[import-untyped]
from torch import Tensor
from transformers import AttentionInterface

from rstar_model.attention import ATTENTION_NAME, packed_attention
from rstar_model.packing import PackedBatch, PackedSegment
from rstar_protos.errors import UserInputError

__all__ = ["SequenceParallel", "padded"]


class SequenceParallel:
    """The group of ranks that this rank shares its rows with. Made on all ranks at once.

    The packed attention of this process exchanges heads from now on, whatever model calls it.

    Args:
        size: neighbouring ranks that share a row.
        config: transformers configuration of the model.

    Raises:
        UserInputError: the heads cannot be shared out.
    """

    def __init__(self, size: int, config: Any) -> None:
        heads, kv_heads = config.num_attention_heads, getattr(config, "num_key_value_heads", None)
        kv_heads = kv_heads or heads
        if heads % size or (kv_heads % size and size % kv_heads):
            accepted = f"a divisor of the model's {heads} heads that shares out its {kv_heads} key-value heads"
            raise UserInputError("learner.sequence_parallel", size, accepted)
        self._size, self._number = size, dist.get_rank() % size
        firsts = range(0, dist.get_world_size(), size)
        groups = {first: dist.new_group(list(range(first, first + size))) for first in firsts}
        self._group = groups[dist.get_rank() - self._number]
        exchanging = UlyssesSPAttentionHF(
            attn=packed_attention,
            batch_size=1,
            attn_head_count=heads,
            attn_head_size=getattr(config, "head_dim", None) or config.hidden_size // heads,
            kv_head_count=kv_heads,
            num_hidden_layers=config.num_hidden_layers,
            process_group=self._group,
            seq_length_is_variable=True,
        )

        def attention(module: torch.nn.Module, *arguments: Any, **options: Any) -> Any:
            return exchanging(module, *arguments, **options)

        AttentionInterface.register(ATTENTION_NAME, attention)

    def row(self, packed: PackedBatch) -> tuple[PackedBatch, int, int]:
        """The row at a length that all ranks can share, and where this rank's tokens begin and end."""
        row = padded(packed, self._size)
        length = len(row) // self._size
        return row, self._number * length, (self._number + 1) * length

    def whole(self, own: Tensor) -> Tensor:
        """The sum of all ranks' values, where each token has a value on one of them; gradient flows to the own ones."""
        total = own.detach().clone()
        dist.all_reduce(total, group=self._group)
        return own + (total - own.detach())


def padded(packed: PackedBatch, multiple: int) -> PackedBatch:
    """The row with a segment of idle tokens behind it, without loss, so that its length is a multiple."""
    length = len(packed)
    extra = -length % multiple
    if not extra:
        return packed

    def longer(values: Tensor, fill: float) -> Tensor:
        return torch.cat([values, values.new_full((extra,), fill)])

    return replace(
        packed,
        token_ids=longer(packed.token_ids, 0),
        position_ids=torch.cat([packed.position_ids, torch.arange(extra).to(packed.position_ids)]),
        cu_seqlens=torch.cat([packed.cu_seqlens, packed.cu_seqlens.new_tensor([length + extra])]),
        loss_mask=longer(packed.loss_mask, False),
        previous=longer(packed.previous, -1),
        sequence_index=longer(packed.sequence_index, packed.sequences - 1),
        engine_log_probs=longer(packed.engine_log_probs, float("nan")),
        segments=(*packed.segments, PackedSegment(length, length + extra)),
    )
