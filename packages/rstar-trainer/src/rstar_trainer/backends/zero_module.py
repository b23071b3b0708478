"""The policy's forward pass as one module, so that DeepSpeed's hooks see every parameter that it uses."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rstar_model.packing import PackedBatch
from rstar_model.policy import LogProbs, Policy

__all__ = ["EnginePolicy", "LogProbModule", "ShardedPolicy"]


class ShardedPolicy(Policy):
    """A policy whose parameters may be bfloat16 copies of float32 ones that the optimizer holds."""

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
