"""Attention for packed rows: inside each segment only.

Registered with transformers under ``rstar_packed``. On a GPU with flash-attention the whole row is one varlen call;
elsewhere torch's scaled-dot-product attention runs segment by segment, so no mask of row x row is ever built.
"""

from __future__ import annotations

import importlib
from functools import lru_cache
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface

from rstar_model._segment_attention import segment_attention
from rstar_model.packing import PackedBatch, PackedSegment

__all__ = ["ATTENTION_NAME", "packed_attention", "register"]

ATTENTION_NAME = "rstar_packed"

_SHORT_SEGMENT = 1024
"""Most keys of a segment whose scores may exist at once (4 MB a head in float32); longer ones use the fused kernel."""


def packed_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    rstar_batch: PackedBatch | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of one packed row.

    Args:
        module: the attention layer.
        query: [1, heads, T, head_dim].
        key: [1, key-value heads, T, head_dim].
        value: like ``key``.
        attention_mask: must be None; a packed row has no padding.
        scaling: of the scores; None for 1/sqrt(head_dim).
        dropout: of the scores.
        sliding_window: of the layer; sequences must be no longer.
        rstar_batch: the row's segments. None: the rows of an ordinary unpadded batch, each causal.

    Returns:
        [1, T, heads, head_dim] and no weights.

    Raises:
        ValueError: a mask was given, or a segment is longer than the sliding window.
    """
    if attention_mask is not None:
        raise ValueError(f"{ATTENTION_NAME} takes no attention mask: rows are packed, not padded")
    longest = rstar_batch.max_seqlen if rstar_batch is not None else query.shape[2]
    if sliding_window is not None and longest > sliding_window:
        raise ValueError(f"a sequence of {longest} tokens exceeds the sliding window of {sliding_window}")
    if rstar_batch is None:
        output = _causal(query, key, value, scaling, dropout)
        return output.transpose(1, 2).contiguous(), None
    flash = _flash_varlen() if query.is_cuda and query.dtype in (torch.float16, torch.bfloat16) else None
    if flash is not None and not rstar_batch.has_shared_prefix:
        row = flash(
            query[0].transpose(0, 1),
            key[0].transpose(0, 1),
            value[0].transpose(0, 1),
            rstar_batch.cu_seqlens,
            rstar_batch.cu_seqlens,
            rstar_batch.max_seqlen,
            rstar_batch.max_seqlen,
            dropout_p=dropout,
            softmax_scale=scaling,
            causal=True,
        )
        return row.unsqueeze(0), None
    parts = [_segment(query, key, value, segment, scaling, dropout) for segment in rstar_batch.segments]
    return torch.cat(parts, dim=2).transpose(1, 2).contiguous(), None


def _segment(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    segment: PackedSegment,
    scaling: float | None,
    dropout: float,
) -> torch.Tensor:
    start, end, prefix_start, prefix_end = segment
    q, k, v = (tensor[:, :, start:end] for tensor in (query, key, value))
    prefix = prefix_end - prefix_start
    if prefix:
        k = torch.cat([key[:, :, prefix_start:prefix_end], k], dim=2)
        v = torch.cat([value[:, :, prefix_start:prefix_end], v], dim=2)
    if q.device.type == "cpu" and dropout == 0.0 and k.shape[2] <= _SHORT_SEGMENT:
        return segment_attention(q, k, v, q.shape[-1] ** -0.5 if scaling is None else scaling)
    if not prefix:
        return _causal(q, k, v, scaling, dropout)
    length = end - start
    mask = torch.ones(length, prefix + length, dtype=torch.bool, device=q.device).tril(diagonal=prefix)
    return scaled_dot_product_attention(
        q, k, v, attn_mask=mask, dropout_p=dropout, scale=scaling, enable_gqa=q.shape[1] != k.shape[1]
    )


def _causal(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None, dropout: float
) -> torch.Tensor:
    return scaled_dot_product_attention(
        query,
        key,
        value,
        is_causal=query.shape[2] > 1,
        dropout_p=dropout,
        scale=scaling,
        enable_gqa=query.shape[1] != key.shape[1],
    )


@lru_cache(maxsize=1)
def _flash_varlen() -> Any:
    try:
        return importlib.import_module("flash_attn").flash_attn_varlen_func
    except (ImportError, AttributeError):  # not installed, or built for another torch
        return None


def register() -> None:
    """Make the attention known to transformers; idempotent."""
    AttentionInterface.register(ATTENTION_NAME, packed_attention)
