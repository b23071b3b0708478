"""Attention over the KV pool, plugged into any transformers model through its AttentionInterface.

The model is called with all tokens of a step in one flat row, [1, tokens], without padding and without its own
cache. This function writes their keys and values into the pool and attends each token to its own sequence.

Decoding reads all keys of all sequences, which on a CPU is most of the time. Two measures: query heads that share
a KV head are attended together instead of repeating keys, and tokens that all sequences have in common (the system
prompt) are attended once for all rows and merged by their log-sum-exp.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as functional
from transformers import AttentionInterface

from rstar_protos.errors import UserInputError
from rstar_rollout.engines.kv_pool import SPARE_TOKENS, KvPool

__all__ = ["ATTENTION_NAME", "DecodePlan", "PrefillPlan", "PrefillSegment"]

ATTENTION_NAME = "rstar_kv_pool"


@dataclass(frozen=True)
class PrefillSegment:
    """Tokens ``start:stop`` of the flat row continue the sequence in pool row ``row`` after ``past`` tokens."""

    start: int
    stop: int
    row: int
    past: int


class PrefillPlan:
    """New tokens of several sequences, each attending causally to its own past."""

    def __init__(self, pool: KvPool, segments: list[PrefillSegment], device: torch.device) -> None:
        self.pool = pool
        self.segments = segments
        self.positions = torch.cat([torch.arange(s.past, s.past + s.stop - s.start, device=device) for s in segments])
        rows = torch.cat([torch.full((s.stop - s.start,), s.row, device=device) for s in segments])
        self.write_index = rows * pool.capacity + self.positions
        # Query i of a segment sees its past and the tokens up to itself.
        self._masks = [
            torch.ones(s.stop - s.start, s.past + s.stop - s.start, dtype=torch.bool, device=device).tril(s.past)
            if s.past and s.stop - s.start > 1
            else None
            for s in segments
        ]

    def attend(self, layer: torch.Tensor, query: torch.Tensor, scaling: float) -> torch.Tensor:
        """[tokens, heads, dim] -> same shape."""
        output = torch.empty_like(query)
        for segment, mask in zip(self.segments, self._masks, strict=True):
            length = segment.past + segment.stop - segment.start
            keys, values = layer[:, segment.row, :length].transpose(1, 2).unsqueeze(1)
            result = functional.scaled_dot_product_attention(
                query[segment.start : segment.stop].transpose(0, 1).unsqueeze(0),
                keys,
                values,
                attn_mask=mask,
                is_causal=segment.past == 0,
                scale=scaling,
                enable_gqa=True,
            )
            output[segment.start : segment.stop] = result[0].transpose(0, 1)
        return output


class DecodePlan:
    """One new token for each of the first n pool rows.

    Args:
        pool: the KV memory.
        lengths: tokens already in each row; the new token goes to this position.
        shared: number of leading tokens that all n sequences have in common, below every length.
    """

    def __init__(self, pool: KvPool, lengths: list[int], shared: int, device: torch.device) -> None:
        self.pool = pool
        self.positions = torch.tensor(lengths, device=device)
        self.write_index = torch.arange(len(lengths), device=device) * pool.capacity + self.positions
        self.cascade = shared > 0 and device.type == "cpu"
        self._shared = shared if self.cascade else 0
        # Few distinct lengths, because kernels are generated per shape; and they depend on the sequences alone,
        # not on the pool, because another length may round differently.
        self._stop = self._shared + -(-(max(lengths) + 1 - self._shared) // SPARE_TOKENS) * SPARE_TOKENS
        index = torch.arange(self._shared, self._stop, device=device)
        allowed = index.unsqueeze(0) <= self.positions.unsqueeze(1)
        self._mask = torch.zeros(allowed.shape, device=device).masked_fill_(~allowed, float("-inf"))
        self._mask = self._mask[:, None, None, :]

    def attend(self, layer: torch.Tensor, query: torch.Tensor, scaling: float) -> torch.Tensor:
        """[n, heads, dim] -> same shape."""
        count, heads, dim = query.shape
        kv_heads = layer.shape[3]
        grouped = query.reshape(count, kv_heads, heads // kv_heads, dim)
        keys, values = layer[:, :count, self._shared : self._stop].transpose(2, 3)
        mask = self._mask.expand(-1, -1, grouped.shape[2], -1)
        if not self.cascade:
            attended = functional.scaled_dot_product_attention(
                grouped, keys, values, attn_mask=mask.to(query.dtype), scale=scaling
            )
            return attended.reshape(count, heads, dim)
        own, own_lse = _flash(grouped, keys, values, mask, scaling)
        prefix_keys, prefix_values = layer[:, 0, : self._shared].transpose(1, 2).unsqueeze(1)
        folded = grouped.transpose(0, 1).reshape(1, kv_heads, -1, dim)
        prefix, prefix_lse = _flash(folded, prefix_keys, prefix_values, None, scaling)
        prefix = prefix.view(kv_heads, count, -1, dim).transpose(0, 1)
        prefix_lse = prefix_lse.view(kv_heads, count, -1).transpose(0, 1)
        share = torch.sigmoid(prefix_lse - own_lse).unsqueeze(-1)
        merged = torch.lerp(own.float(), prefix.float(), share)
        return merged.to(query.dtype).reshape(count, heads, dim)


def _flash(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, scaling: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention output and the log-sum-exp of its scores (float32, natural logarithm)."""
    output, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, keys, values, 0.0, False, attn_mask=mask, scale=scaling
    )
    return output, lse


def _pool_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    *,
    rstar_plan: PrefillPlan | DecodePlan,
    sliding_window: int | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """AttentionInterface function: query [1, heads, tokens, dim], key and value [1, KV heads, tokens, dim]."""
    if sliding_window is not None and rstar_plan.pool.capacity > sliding_window:
        raise UserInputError(
            "model", "sliding-window attention", "a model whose window is no shorter than its sequences"
        )
    for feature in ("softcap", "s_aux"):
        if kwargs.get(feature) is not None:
            raise UserInputError("model", f"attention with {feature}", "a model without it, or --engine vllm")
    # Torch types attributes of modules loosely.
    layer = rstar_plan.pool.layer(int(module.layer_idx))  # type: ignore[arg-type]
    flat = layer.flatten(1, 2)
    flat[0].index_copy_(0, rstar_plan.write_index, key[0].transpose(0, 1))
    flat[1].index_copy_(0, rstar_plan.write_index, value[0].transpose(0, 1))
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    output = rstar_plan.attend(layer, query[0].transpose(0, 1), scale)
    return output.unsqueeze(0), None


AttentionInterface.register(ATTENTION_NAME, _pool_attention)
