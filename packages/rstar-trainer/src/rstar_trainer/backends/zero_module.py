"""The policy's forward pass as one module, so that DeepSpeed's hooks see every parameter that it uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rstar_model.packing import PackedBatch
from rstar_model.policy import LogProbs, Policy

if TYPE_CHECKING:
    from rstar_trainer.backends.sequence_parallel import SequenceParallel

__all__ = ["EnginePolicy", "LogProbModule", "ShardedPolicy"]


class ShardedPolicy(Policy):
    """A policy whose parameters may be bfloat16 copies of float32 ones that the optimizer holds.

    With `sequence` set, its ranks compute each row together; all are given the whole row, and return all of it.
    """

    sequence: SequenceParallel | None = None

    def forward_log_probs(
        self,
        packed: PackedBatch,
        temperature: float = 1.0,
        chunk_tokens: int = 1024,
        with_entropy: bool = False,
        only_mask: bool = True,
    ) -> LogProbs:
        """See `Policy.forward_log_probs`."""
        sequence = self.sequence
        if sequence is None:
            return super().forward_log_probs(packed, temperature, chunk_tokens, with_entropy, only_mask)
        row, start, end = sequence.row(packed.to(self.device))
        own = (row.previous >= start) & (row.previous < end)
        at = (own & row.loss_mask if only_mask else own).nonzero().squeeze(1)
        states = self._hidden(row, start, end)
        # A rank without any token of its own takes part all the same: its collectives are the others' too.
        idle = len(at) == 0
        if idle:
            at = at.new_zeros(1)
            places, targets = at, row.token_ids[:1]
        else:
            places, targets = row.previous[at] - start, row.token_ids[at]
        found = self._project(states.index_select(0, places), targets, temperature, chunk_tokens, with_entropy)

        def whole(own_values: Tensor) -> Tensor:
            """What all ranks have found, at the places of the row; without the tokens that fill the row up."""
            shared = own_values * 0.0 if idle else own_values
            return sequence.whole(own_values.new_zeros(len(row)).index_copy(0, at, shared))[: len(packed)]

        log_probs, entropy = found
        return LogProbs(whole(log_probs), None if entropy is None else whole(entropy))

    def _projection_dtype(self) -> torch.dtype:
        """Logits rounded to bfloat16 would be 0.1 nats off, whatever the parameters are held in."""
        dtype = super()._projection_dtype()
        return torch.float32 if dtype == torch.bfloat16 else dtype


class LogProbModule(torch.nn.Module):
    """Log-probabilities of a packed row, as `Policy.forward_log_probs` has them.

    Args:
        policy: its model becomes a child of this module.
    """

    def __init__(self, policy: Policy) -> None:
        super().__init__()
        self.model = policy.model
        self._policy = policy

    def forward(self, packed: PackedBatch, temperature: float, with_entropy: bool) -> tuple[Tensor, ...]:
        """Log-probabilities and, if asked for, entropies; see `LogProbs`."""
        found = self._policy.forward_log_probs(packed, temperature=temperature, with_entropy=with_entropy)
        return (found.log_probs,) if found.entropy is None else (found.log_probs, found.entropy)


class EnginePolicy:
    """The part of a `Policy` that `LossPass` uses, computed through a DeepSpeed engine.

    Args:
        engine: over a `LogProbModule`.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    @property
    def device(self) -> torch.device:
        """Where the parameters lie."""
        device: torch.device = self._engine.device
        return device

    def forward_log_probs(self, packed: PackedBatch, temperature: float = 1.0, with_entropy: bool = False) -> LogProbs:
        """See `Policy.forward_log_probs`."""
        found = self._engine(packed.to(self.device), temperature, with_entropy)
        return LogProbs(found[0], found[1] if with_entropy else None)
