"""Sequences laid end to end, without padding, and the map back.

A packed batch is one row of tokens cut into segments. Attention stays inside a segment, except that segments may
share a common prefix: the rollouts of a group have the same prompt, which is then computed once. Whatever the
layout, ``previous[t]`` names the row position whose hidden state predicts token t.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from rstar_model.ledger import TokenLedger

__all__ = ["PackedBatch", "PackedSegment", "TrainingSequence", "pack", "split_by_tokens"]


class TrainingSequence(NamedTuple):
    """Ids and loss mask of one sequence, equally long; ``log_probs`` of the engine where it has them, else nan."""

    token_ids: Sequence[int]
    loss_mask: Sequence[bool]
    log_probs: Sequence[float] | None = None

    @classmethod
    def from_ledger(cls, ledger: TokenLedger) -> TrainingSequence:
        """Everything of a ledger that training needs."""
        return cls(ledger.token_ids, ledger.loss_mask, ledger.log_probs)


class PackedSegment(NamedTuple):
    """Row positions [start, end), attending to themselves causally and to all of [prefix_start, prefix_end)."""

    start: int
    end: int
    prefix_start: int = 0
    prefix_end: int = 0


@dataclass(frozen=True)
class PackedBatch:
    """One row of T tokens that holds B sequences.

    All tensors are 1-D and as long as the row unless said otherwise.
    """

    token_ids: torch.Tensor
    """int64."""
    position_ids: torch.Tensor
    """int64; position inside the own sequence."""
    cu_seqlens: torch.Tensor
    """int32 [S+1]: where the S segments begin, and T."""
    loss_mask: torch.Tensor
    """bool; true where the policy chose the token."""
    previous: torch.Tensor
    """int64; row position that predicts the token, -1 at the start of a sequence."""
    sequence_index: torch.Tensor
    """int64; which of the B sequences the token belongs to. A shared prefix belongs to the first that has it."""
    engine_log_probs: torch.Tensor
    """float32; log-probability that the engine recorded, nan where there is none."""
    segments: tuple[PackedSegment, ...]
    sequences: int
    """B."""

    def __len__(self) -> int:
        """T, tokens that are computed."""
        return int(self.token_ids.numel())

    @property
    def has_shared_prefix(self) -> bool:
        """Whether a segment attends to a prefix that is not its own."""
        return any(segment.prefix_end > segment.prefix_start for segment in self.segments)

    @property
    def max_seqlen(self) -> int:
        """Tokens of the longest segment, prefix included."""
        return max(
            (s.end - s.start + s.prefix_end - s.prefix_start for s in self.segments),
            default=0,
        )

    def to(self, device: torch.device | str) -> PackedBatch:
        """The same batch on another device."""
        moved: dict[str, Any] = {
            name: value.to(device) for name, value in vars(self).items() if isinstance(value, torch.Tensor)
        }
        return replace(self, **moved)


def pack(
    sequences: Sequence[TokenLedger | TrainingSequence | tuple[Sequence[int], Sequence[bool]]],
    *,
    share_prefix: bool = False,
) -> PackedBatch:
    """Lay sequences end to end.

    Policy tokens appear in the order of the sequences and inside each in order, so that
    ``values[batch.loss_mask]`` lines up with concatenated per-sequence values in either layout.

    Args:
        sequences: at least one, each with at least one token.
        share_prefix: compute once the longest common start of neighbouring sequences that carries no loss. The
            result is the same up to rounding.

    Raises:
        ValueError: no sequences, an empty one, or lengths that differ inside one.
    """
    items = [_as_sequence(item) for item in sequences]
    if not items:
        raise ValueError("nothing to pack")
    builder = _Builder()
    index = 0
    while index < len(items):
        group, prefix = _prefix_group(items, index) if share_prefix else ([items[index]], 0)
        builder.add(group, prefix, index)
        index += len(group)
    return builder.build(len(items))


def split_by_tokens(lengths: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Cut neighbouring sequences into micro-batches of at most ``max_tokens`` tokens, in order.

    A sequence that is longer than the limit gets a micro-batch of its own.

    Returns:
        Indices of each micro-batch.
    """
    batches: list[list[int]] = []
    used = 0
    for index, length in enumerate(lengths):
        if not batches or used + length > max_tokens:
            batches.append([])
            used = 0
        batches[-1].append(index)
        used += length
    return batches


def _as_sequence(
    item: TokenLedger | TrainingSequence | tuple[Sequence[int], Sequence[bool]],
) -> TrainingSequence:
    sequence = TrainingSequence.from_ledger(item) if isinstance(item, TokenLedger) else TrainingSequence(*item)
    length = len(sequence.token_ids)
    if length == 0:
        raise ValueError("an empty sequence cannot be packed")
    if len(sequence.loss_mask) != length:
        raise ValueError(f"{length} tokens but a loss mask of {len(sequence.loss_mask)}")
    if sequence.log_probs is not None and len(sequence.log_probs) != length:
        raise ValueError(f"{length} tokens but {len(sequence.log_probs)} log-probabilities")
    return sequence


def _prefix_group(items: Sequence[TrainingSequence], first: int) -> tuple[list[TrainingSequence], int]:
    """The run of sequences from ``first`` on that start alike, and how many tokens they share.

    The shared part ends before the first token with loss and leaves each sequence at least one token. Sequences join
    while they share all of what the first two share, so that one long prompt is not cut by a stranger.
    """
    start = items[first]
    shared = 0
    group = [start]
    for other in items[first + 1 :]:
        common = _common_prefix(start, other, shared or None)
        if common == 0 or (shared and common < shared):
            break
        shared = common
        group.append(other)
    return group, shared


def _common_prefix(a: TrainingSequence, b: TrainingSequence, limit: int | None) -> int:
    longest = min(len(a.token_ids), len(b.token_ids)) - 1
    if limit is not None:
        longest = min(longest, limit)
    for index in range(longest):
        if a.loss_mask[index] or b.loss_mask[index] or a.token_ids[index] != b.token_ids[index]:
            return index
    return max(longest, 0)


class _Builder:
    """Collects the columns of a packed batch."""

    def __init__(self) -> None:
        self.token_ids: list[int] = []
        self.position_ids: list[int] = []
        self.loss_mask: list[bool] = []
        self.previous: list[int] = []
        self.sequence_index: list[int] = []
        self.log_probs: list[float] = []
        self.segments: list[PackedSegment] = []

    def add(self, group: Sequence[TrainingSequence], prefix: int, first_index: int) -> None:
        prefix_start = len(self.token_ids)
        if prefix:
            self._add_segment(group[0], 0, prefix, first_index, before=-1, shared=(0, 0))
        shared = (prefix_start, prefix_start + prefix) if prefix else (0, 0)
        before = prefix_start + prefix - 1 if prefix else -1
        for offset, sequence in enumerate(group):
            end = len(sequence.token_ids)
            self._add_segment(sequence, prefix, end, first_index + offset, before=before, shared=shared)

    def _add_segment(
        self,
        sequence: TrainingSequence,
        begin: int,
        end: int,
        index: int,
        *,
        before: int,
        shared: tuple[int, int],
    ) -> None:
        start = len(self.token_ids)
        length = end - begin
        self.token_ids += sequence.token_ids[begin:end]
        self.position_ids += range(begin, end)
        self.loss_mask += sequence.loss_mask[begin:end]
        self.previous += [before, *range(start, start + length - 1)]
        self.sequence_index += [index] * length
        self.log_probs += [float("nan")] * length if sequence.log_probs is None else sequence.log_probs[begin:end]
        self.segments.append(PackedSegment(start, start + length, *shared))

    def build(self, sequences: int) -> PackedBatch:
        bounds = [0, *(segment.end for segment in self.segments)]
        return PackedBatch(
            token_ids=torch.tensor(self.token_ids, dtype=torch.int64),
            position_ids=torch.tensor(self.position_ids, dtype=torch.int64),
            cu_seqlens=torch.tensor(bounds, dtype=torch.int32),
            loss_mask=torch.tensor(self.loss_mask, dtype=torch.bool),
            previous=torch.tensor(self.previous, dtype=torch.int64),
            sequence_index=torch.tensor(self.sequence_index, dtype=torch.int64),
            engine_log_probs=torch.tensor(self.log_probs, dtype=torch.float32),
            segments=tuple(self.segments),
            sequences=sequences,
        )
