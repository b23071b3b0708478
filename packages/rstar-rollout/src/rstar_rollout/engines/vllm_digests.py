"""Digests of what a vLLM worker has loaded, under the names that the parameters have in the checkpoint.

vLLM fuses query, key and value, and gate and up; with tensor parallelism a worker has some rows or columns; and on a
CPU it keeps a linear layer's weight only in the layout of its matrix kernel. So each layer is asked for the blocks of
checkpoint parameters that lie in it, and a weight that cannot be looked at is read through the very kernel that uses
it: a product with the identity gives its values exactly.

A layer of a kind that is not known here is left out. Its parameters are then missing in the comparison with what was
sent, which fails: an engine whose weights cannot be checked is not used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from vllm.model_executor.layers.linear import (
    ColumnParallelLinear,
    LinearBase,
    MergedColumnParallelLinear,
    QKVParallelLinear,
    ReplicatedLinear,
    RowParallelLinear,
)
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

from rstar_model.digests import DigestPiece, slice_digest

__all__ = ["Block", "loaded_blocks", "loaded_pieces"]

Block = tuple[str, tuple[int, ...], torch.Tensor]
"""Name of a checkpoint parameter, where a block of it begins, and the block."""

_ROWS_AT_ONCE = 1024


def loaded_pieces(model: torch.nn.Module) -> list[DigestPiece]:
    """Digests of everything that the model of a worker holds."""
    return [
        DigestPiece(
            name, str(block.dtype).removeprefix("torch."), offsets, tuple(block.shape), slice_digest(block, offsets)
        )
        for name, offsets, block in loaded_blocks(model)
    ]


@torch.no_grad()
def loaded_blocks(model: torch.nn.Module) -> Iterator[Block]:
    """The blocks of checkpoint parameters that lie in the layers of a worker's model, one after another."""
    packed: dict[str, list[str]] = getattr(model, "packed_modules_mapping", {})
    tied, table = getattr(getattr(model, "config", None), "tie_word_embeddings", False), ""
    for name, module in model.named_modules():
        if isinstance(module, LinearBase):
            yield from _linear_blocks(name, module, packed)
        elif isinstance(module, VocabParallelEmbedding):
            # An output layer that shares the weight of the embedding has no parameter of its own in the checkpoint.
            table = table if tied and table else name
            yield from _embedding_blocks(table, module)
        else:
            for own, parameter in module.named_parameters(recurse=False):
                yield f"{name}.{own}" if name else own, (0,) * parameter.dim(), parameter.detach()


def _linear_blocks(name: str, layer: Any, packed: dict[str, list[str]]) -> Iterator[Block]:
    parent, _, last = name.rpartition(".")
    parts = [f"{parent}.{part}" if parent else part for part in packed.get(last, [last])]
    # Rows of the layer, and where they begin in the parameter; only RowParallelLinear splits columns.
    rows = list(_row_parts(layer))
    if len(rows) != len(parts):
        return
    column = layer.tp_rank * layer.input_size_per_partition if isinstance(layer, RowParallelLinear) else 0
    weight, begin = _weight_of(layer), 0
    for part, (first, count) in zip(parts, rows, strict=True):
        yield f"{part}.weight", (first, column), weight[begin : begin + count]
        bias = getattr(layer, "bias", None)
        if bias is not None:
            yield f"{part}.bias", (first,), bias[begin : begin + count]
        begin += count


def _row_parts(layer: Any) -> Iterator[tuple[int, int]]:
    """First row in the parameter, and number of rows, of each parameter that is fused in a layer."""
    if isinstance(layer, QKVParallelLinear):
        yield layer.tp_rank * layer.num_heads * layer.head_size, layer.num_heads * layer.head_size
        # Fewer key heads than workers: some workers hold the same ones.
        group = layer.tp_rank // layer.num_kv_head_replicas
        for size in (layer.head_size, layer.v_head_size):
            yield group * layer.num_kv_heads * size, layer.num_kv_heads * size
    elif isinstance(layer, MergedColumnParallelLinear):
        for size in layer.output_sizes:
            yield layer.tp_rank * (size // layer.tp_size), size // layer.tp_size
    elif isinstance(layer, ColumnParallelLinear):
        yield layer.tp_rank * layer.output_size_per_partition, layer.output_size_per_partition
    elif isinstance(layer, RowParallelLinear | ReplicatedLinear):
        yield 0, layer.output_size


def _embedding_blocks(name: str, layer: Any) -> Iterator[Block]:
    """Rows of a vocabulary matrix without padding. A matrix that is also the output layer lies in memory twice on a
    CPU, as a table and in the kernel's layout; both are read, and both have to be the sender's.
    """
    shard = layer.shard_indices
    first, count = shard.org_vocab_start_index, shard.org_vocab_end_index - shard.org_vocab_start_index
    if layer.weight.numel():
        yield f"{name}.weight", (first, 0), layer.weight.detach()[:count]
    if hasattr(layer, "cpu_linear"):
        yield f"{name}.weight", (first, 0), _read_back(layer)[:count]


def _weight_of(layer: Any) -> torch.Tensor:
    """The weight [outputs, inputs] that a linear layer computes with."""
    weight: torch.Tensor = layer.weight
    shape = (sum(layer.output_partition_sizes), layer.input_size_per_partition)
    if hasattr(layer, "cpu_linear") or tuple(weight.shape) != shape:
        return _read_back(layer)
    return weight.detach()


def _read_back(layer: Any) -> torch.Tensor:
    """A weight [outputs, inputs] as the layer's kernel has it: each product with a row of the identity adds one value
    and zeros, which is exact in any dtype.
    """
    inputs = getattr(layer, "input_size_per_partition", None) or layer.embedding_dim
    dtype = getattr(layer, "params_dtype", None) or layer.weight.dtype
    device = layer.weight.device
    columns = []
    for begin in range(0, inputs, _ROWS_AT_ONCE):
        count = min(_ROWS_AT_ONCE, inputs - begin)
        rows = torch.zeros(count, inputs, dtype=dtype, device=device)
        rows[torch.arange(count), torch.arange(begin, begin + count)] = 1
        columns.append(layer.quant_method.apply(layer, rows, bias=None))
    return torch.cat(columns).t()
