"""Checksums of parameters that can be put together from pieces.

An engine rarely holds a parameter as the learner does: query, key and value are fused into one tensor, and with tensor
parallelism each worker has some rows or columns. A digest here is a sum over elements, so that each worker takes the
digest of what lies in its memory, wherever that is, and the sum of all pieces is the digest of the whole parameter.

A tensor is read as rows of 16-bit words. The value is

    sum over rows r of sum over lanes j of F_j(r) * (sum over words c of word[r, c] * w_j(c))   modulo 2**64

where w_j(c) is a fixed pseudo-random number from 1 to 2**20 for word c of a row, and F_j(r) the product of fixed odd
64-bit numbers for the indices of row r. The inner sums are exact in float64, which makes them matrix products. Odd
factors are invertible modulo 2**64, so one changed element always changes the digest; for other differences equal
digests are about as likely as with a hash of 50 bits. It finds damage and mistakes, it is no signature.

Zeros of either sign and subnormal numbers count as 0: matrix kernels flush them, so that an engine that can only be
asked for its weights through such a kernel gives the same digest.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

__all__ = ["DigestPiece", "differing_parameters", "join_pieces", "parameter_digest", "slice_digest"]

_MODULUS = 1 << 64
_LANES = 3
_WEIGHT_BITS = 20
# 2**16 words below 2**15 times weights below 2**20 stay below 2**53, where float64 is exact.
_ROW_WORDS = 1 << 16
_CHUNK_WORDS = 1 << 18
# Bits of the exponent, in the integer type of the same width: without them a number is 0 or subnormal.
_EXPONENT: Mapping[torch.dtype, tuple[torch.dtype, int]] = {
    torch.bfloat16: (torch.int16, 0x7F80),
    torch.float16: (torch.int16, 0x7C00),
    torch.float32: (torch.int32, 0x7F800000),
    torch.float64: (torch.int64, 0x7FF0000000000000),
}


@dataclass(frozen=True)
class DigestPiece:
    """The digest of a block of a parameter.

    Attributes:
        name: of the parameter, as in the checkpoint.
        dtype: such as "bfloat16".
        offsets: where the block begins, by dimension of the whole parameter.
        shape: of the block.
        value: from `slice_digest`.
    """

    name: str
    dtype: str
    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    value: int


def slice_digest(block: torch.Tensor, offsets: Sequence[int] | None = None) -> int:
    """Digest of a block of a tensor, 0 <= value < 2**64.

    Args:
        block: floating point, on any device; it need not be contiguous.
        offsets: where it begins in the whole tensor; None: it is the whole tensor.

    Raises:
        ValueError: a dtype without a digest, or offsets of another number of dimensions.
    """
    if block.dtype not in _EXPONENT:
        raise ValueError(f"no digest for dtype {block.dtype}")
    starts = tuple(offsets) if offsets is not None else (0,) * block.dim()
    if len(starts) != block.dim():
        raise ValueError(f"{len(starts)} offsets for {block.dim()} dimensions")
    if block.dim() == 0:
        block, starts = block.reshape(1), (0,)
    if block.numel() == 0:
        return 0
    words_each = block.element_size() // 2
    weights = _word_weights(starts[-1] * words_each, block.shape[-1] * words_each, block.device)
    rows = block.detach().reshape(-1, block.shape[-1])
    factors = _row_factors(starts[:-1], block.shape[:-1], block.device)
    step = max(1, _CHUNK_WORDS // weights.shape[0])
    total = 0
    for begin in range(0, rows.shape[0], step):
        words = _words(rows[begin : begin + step])
        for first in range(0, words.shape[1], _ROW_WORDS):
            part = slice(first, first + _ROW_WORDS)
            sums = (words[:, part].to(torch.float64) @ weights[part]).to(torch.int64)
            total += int((sums * factors[begin : begin + step]).sum())
    return total % _MODULUS


def parameter_digest(tensor: torch.Tensor) -> str:
    """Dtype, shape and digest of a whole parameter as text: equal texts, equal parameters."""
    return _text(_dtype_name(tensor.dtype), tuple(tensor.shape), slice_digest(tensor))


def join_pieces(pieces: Iterable[DigestPiece]) -> dict[str, str]:
    """Digests of whole parameters, as `parameter_digest` has them, from the pieces that workers hold.

    The same block from several workers (replicated parameters) has to have the same digest in all of them. What does
    not make up a whole parameter is told in the text instead of a digest, so that it equals no digest.
    """
    by_name: defaultdict[str, list[DigestPiece]] = defaultdict(list)
    for piece in pieces:
        by_name[piece.name].append(piece)
    return {name: _joined(found) for name, found in by_name.items()}


def differing_parameters(expected: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """One line for each parameter that is not what was expected, in order of name."""
    lines = []
    for name in sorted(expected.keys() | found.keys()):
        if name not in found:
            lines.append(f"{name} is not loaded")
        elif name not in expected:
            lines.append(f"{name} was not sent")
        elif expected[name] != found[name]:
            lines.append(f"{name} is {found[name]}, sent was {expected[name]}")
    return lines


def _joined(pieces: Sequence[DigestPiece]) -> str:
    blocks: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    for piece in pieces:
        if blocks.setdefault((piece.offsets, piece.shape), piece.value) != piece.value:
            return f"different in replicas (at {list(piece.offsets)})"
    dtypes = {piece.dtype for piece in pieces}
    if len(dtypes) > 1:
        return f"of several dtypes ({', '.join(sorted(dtypes))})"
    whole = tuple(max(offsets[k] + shape[k] for offsets, shape in blocks) for k in range(len(pieces[0].offsets)))
    held = sum(math.prod(shape) for _, shape in blocks)
    if held != math.prod(whole):
        return f"incomplete ({held} of {math.prod(whole)} elements)"
    return _text(dtypes.pop(), whole, sum(blocks.values()) % _MODULUS)


def _text(dtype: str, shape: tuple[int, ...], value: int) -> str:
    return f"{dtype} {list(shape)} {value:016x}"


def _dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _words(rows: torch.Tensor) -> torch.Tensor:
    """Bit patterns as int16, [rows, words of a row]; 0 for zeros and subnormal numbers."""
    integer, exponent = _EXPONENT[rows.dtype]
    bits = rows.contiguous().view(integer)
    return bits.masked_fill((bits & exponent) == 0, 0).view(torch.int16)


def _word_weights(start: int, count: int, device: torch.device) -> torch.Tensor:
    """w_j(c) for words [start, start + count), float64 [count, lanes]."""
    lanes = [(_random(lane, start, count, device) & ((1 << _WEIGHT_BITS) - 1)) + 1 for lane in range(_LANES)]
    return torch.stack(lanes, dim=1).to(torch.float64)


def _row_factors(starts: Sequence[int], shape: Sequence[int], device: torch.device) -> torch.Tensor:
    """F_j(r) of all rows of a block, int64 [rows, lanes]."""
    factors = torch.ones(1, _LANES, dtype=torch.int64, device=device)
    for dimension, (start, size) in enumerate(zip(starts, shape, strict=True)):
        streams = range(_LANES * (dimension + 1), _LANES * (dimension + 2))
        own = torch.stack([_random(stream, start, size, device) | 1 for stream in streams], dim=1)
        factors = (factors[:, None] * own[None]).reshape(-1, _LANES)
    return factors


def _random(stream: int, start: int, count: int, device: torch.device) -> torch.Tensor:
    """SplitMix64 (Steele et al., 2014) at indices [start, start + count) of a stream, int64."""
    x = torch.arange(start, start + count, dtype=torch.int64, device=device)
    # The constants of SplitMix64, as signed numbers.
    x = x * -0x61C8864680B583EB + (stream + 1) * 0x1000000000001
    for shift, multiplier in ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15)):
        x = (x ^ _shifted(x, shift)) * multiplier
    return x ^ _shifted(x, 31)


def _shifted(x: torch.Tensor, by: int) -> torch.Tensor:
    """Logical right shift; that of torch keeps the sign."""
    return (x >> by) & ((1 << (64 - by)) - 1)
