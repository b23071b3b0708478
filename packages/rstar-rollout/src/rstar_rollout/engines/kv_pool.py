"""Key/value memory of the transformers engine: rows of equal capacity in one tensor.

Layout [layer, key or value, row, token, KV head, head dimension]: a token's keys of one layer are contiguous, so
a step writes all its rows with one indexed copy, and saving or restoring a sequence is one strided copy.
"""

from __future__ import annotations

import torch

__all__ = ["SPARE_TOKENS", "KvPool"]

_GROWTH_TOKENS = 256
SPARE_TOKENS = 32
"""Readable tokens beyond those asked for, so that readers may round lengths up without regard to the capacity."""


class KvPool:
    """Preallocated rows; capacity grows in steps of 256 tokens when a longer sequence comes in."""

    def __init__(
        self, layers: int, kv_heads: int, head_dim: int, rows: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._shape = (layers, 2, rows, 0, kv_heads, head_dim)
        self._data = torch.zeros(self._shape, dtype=dtype, device=device)

    @property
    def rows(self) -> int:
        """How many sequences fit at once."""
        return int(self._data.shape[2])

    @property
    def capacity(self) -> int:
        """Tokens per row."""
        return int(self._data.shape[3])

    @property
    def bytes_per_token(self) -> int:
        """Keys and values of one token in all layers."""
        layers, two, _, _, heads, dim = self._shape
        return layers * two * heads * dim * self._data.element_size()

    def layer(self, index: int) -> torch.Tensor:
        """[key or value, row, token, KV head, head dimension] of one layer, a view."""
        return self._data[index]

    def ensure(self, tokens: int, used_rows: int, used_tokens: int) -> None:
        """Make room for ``tokens`` per row, keeping the first ``used_tokens`` of the first ``used_rows``."""
        if tokens + SPARE_TOKENS <= self.capacity:
            return
        grown = -(-tokens // _GROWTH_TOKENS) * _GROWTH_TOKENS + SPARE_TOKENS
        layers, two, rows, _, heads, dim = self._shape
        # Zeros, because masked positions are read and a NaN there would spread; untouched pages cost nothing.
        data = torch.zeros((layers, two, rows, grown, heads, dim), dtype=self._data.dtype, device=self._data.device)
        if used_rows:
            data[:, :, :used_rows, :used_tokens] = self._data[:, :, :used_rows, :used_tokens]
        self._data = data

    def shrink(self) -> None:
        """Give all memory back; the next `ensure` allocates anew."""
        self._data = torch.zeros(self._shape, dtype=self._data.dtype, device=self._data.device)

    def save(self, row: int, tokens: int) -> torch.Tensor:
        """A copy of the first ``tokens`` of a row: [layer, key or value, token, KV head, head dimension]."""
        return self._data[:, :, row, :tokens].clone()

    def load(self, row: int, saved: torch.Tensor) -> None:
        """Write a saved sequence to the start of a row."""
        self._data[:, :, row, : saved.shape[2]] = saved

    def move(self, source: int, target: int, tokens: int) -> None:
        """Copy the first ``tokens`` of one row over another."""
        self._data[:, :, target, :tokens] = self._data[:, :, source, :tokens]
