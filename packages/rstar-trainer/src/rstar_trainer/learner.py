"""The learner: what turns sequences into a new policy.

`Learner` is the seam; `TorchLearner` is the single-process one. Parameters have fp32 master weights and the forward
pass runs under bf16 autocast: with bf16 weights alone AdamW at a learning rate of 1e-6 rounds every update away.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from rstar_model.packing import PackedBatch, pack, split_by_tokens
from rstar_model.policy import Policy
from rstar_model.weights import WeightManifest, write_weights
from rstar_trainer.objective import clipped_policy_loss, sequence_token_weights
from rstar_trainer.recipe import LossSettings, OptimizerSettings
from rstar_trainer.sequences import WeightedSequence

__all__ = ["Learner", "TorchLearner", "UpdateMetrics"]


@dataclass(frozen=True)
class UpdateMetrics:
    """Figures of one update or of all updates of a step, over policy tokens alone.

    Attributes:
        loss: value of the objective (mean over the updates).
        grad_norm: norm before clipping (of the last update).
        tokens: tokens that went through the forward pass.
        policy_tokens: tokens that carried loss.
        seconds: wall time.
        ratio: mean importance ratio.
        clip_low_share: share of tokens stopped by the lower bound.
        clip_high_share: share of tokens stopped by the upper bound.
        entropy: mean entropy of the policy, nats.
        kl: k3 estimate of KL(policy at the start of the step || policy), nats per token.
        mismatch: mean |engine - trainer| log-probability before the update, nats.
    """

    loss: float
    grad_norm: float
    tokens: int
    policy_tokens: int
    seconds: float
    ratio: float = 1.0
    clip_low_share: float = 0.0
    clip_high_share: float = 0.0
    entropy: float = math.nan
    kl: float = 0.0
    mismatch: float = math.nan


class Learner(Protocol):
    """Owns the parameters and the optimizer."""

    def supervised_update(
        self, sequences: Sequence[WeightedSequence], learning_rate: float, micro_batch_tokens: int
    ) -> UpdateMetrics:
        """One update on the token mean of the negative log-likelihood."""

    def policy_update(
        self,
        sequences: Sequence[WeightedSequence],
        learning_rate: float,
        temperature: float,
        loss: LossSettings,
    ) -> UpdateMetrics:
        """The updates of one rollout step."""

    def reset_optimizer(self) -> None:
        """Forgets the optimizer's moments."""

    def write_weights(self, folder: Path, version: int) -> WeightManifest:
        """Writes what an engine loads; returns version and checksum."""

    def save_pretrained(self, folder: Path) -> None:
        """Writes an ordinary Hugging Face folder."""

    def state_dict(self) -> Mapping[str, Any]:
        """Everything that a bit-equal continuation needs."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what `state_dict` gave."""


@dataclass
class _Sums:
    loss: float = 0.0
    ratio: float = 0.0
    low: int = 0
    high: int = 0
    kl: float = 0.0
    entropy: float = 0.0
    mismatch: float = 0.0
    mismatch_tokens: int = 0
    tokens: int = 0
    policy_tokens: int = 0


class TorchLearner:
    """Learner in this process, on one device.

    Args:
        policy: with fp32 parameters.
        optimizer: AdamW settings.
        engine_dtype: dtype of the weights that engines load, "bfloat16" or "float32".
    """

    def __init__(self, policy: Policy, optimizer: OptimizerSettings, engine_dtype: str = "bfloat16") -> None:
        self.policy = policy
        self._settings = optimizer
        self._engine_dtype = engine_dtype
        self._parameters = [p for p in policy.model.parameters() if p.requires_grad]
        self._optimizer = self._new_optimizer()

    def supervised_update(
        self, sequences: Sequence[WeightedSequence], learning_rate: float, micro_batch_tokens: int
    ) -> UpdateMetrics:
        """One update on the token mean of the negative log-likelihood (assistant tokens only)."""
        start = time.perf_counter()
        total = sum(sequence.policy_tokens for sequence in sequences)
        sums = _Sums()
        for chosen, packed in self._packed(sequences, micro_batch_tokens):
            log_probs = self._policy_log_probs(packed, temperature=1.0)
            loss = -log_probs.sum() / total
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            sums.loss += float(loss.detach())
            _count(sums, chosen)
        norm = self._step(learning_rate)
        return UpdateMetrics(sums.loss, norm, sums.tokens, sums.policy_tokens, time.perf_counter() - start)

    def policy_update(
        self,
        sequences: Sequence[WeightedSequence],
        learning_rate: float,
        temperature: float,
        loss: LossSettings,
    ) -> UpdateMetrics:
        """The updates of one rollout step on the clipped objective.

        With one update the policy that generated is the policy that is trained, so the old log-probabilities are the
        forward pass's own, detached: the ratio is exactly 1. With several updates they are computed once before the
        first, and groups are dealt out over the updates.

        Args:
            sequences: of accepted groups, with advantages.
            learning_rate: of every update of the step.
            temperature: that the engine sampled at; log-probabilities are taken at the same one.
            loss: clipping, aggregation, number of updates, micro-batch size.

        Raises:
            ValueError: there is nothing to learn from.
        """
        if not sequences:
            raise ValueError("a policy update needs at least one accepted group")
        start = time.perf_counter()
        parts = _split_by_group(sequences, loss.updates_per_step)
        old = None if len(parts) == 1 else self._frozen_log_probs(sequences, temperature, loss.micro_batch_tokens)
        sums, norm = _Sums(), math.nan
        for number, part in enumerate(parts):
            self._accumulate(part, old, temperature, loss, sums, measure_mismatch=number == 0)
            norm = self._step(learning_rate)
        count = max(1, sums.policy_tokens)
        return UpdateMetrics(
            loss=sums.loss / len(parts),
            grad_norm=norm,
            tokens=sums.tokens,
            policy_tokens=sums.policy_tokens,
            seconds=time.perf_counter() - start,
            ratio=sums.ratio / count,
            clip_low_share=sums.low / count,
            clip_high_share=sums.high / count,
            entropy=sums.entropy / count,
            kl=sums.kl / count,
            mismatch=sums.mismatch / sums.mismatch_tokens if sums.mismatch_tokens else math.nan,
        )

    def reset_optimizer(self) -> None:
        """Forgets the optimizer's moments (paper section 4: at the switch to stage 3)."""
        self._optimizer = self._new_optimizer()

    def write_weights(self, folder: Path, version: int) -> WeightManifest:
        """Writes the folder an engine loads, in the engine's dtype."""
        return write_weights(self.policy, folder, version, dtype=self._engine_dtype)

    def save_pretrained(self, folder: Path) -> None:
        """Writes an ordinary Hugging Face folder with fp32 safetensors and the tokenizer."""
        self.policy.save(folder)

    def state_dict(self) -> Mapping[str, Any]:
        """Parameters, optimizer moments and random-number state."""
        return {
            "model": self.policy.model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "torch_rng": torch.get_rng_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what `state_dict` gave."""
        self.policy.model.load_state_dict(state["model"])
        self._optimizer = self._new_optimizer()
        self._optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["torch_rng"])

    def _new_optimizer(self) -> torch.optim.AdamW:
        return torch.optim.AdamW(
            self._parameters,
            lr=0.0,  # set before every step
            betas=self._settings.betas,
            eps=self._settings.eps,
            weight_decay=self._settings.weight_decay,
            fused=True,
        )

    def _packed(
        self, sequences: Sequence[WeightedSequence], max_tokens: int
    ) -> Iterator[tuple[list[WeightedSequence], PackedBatch]]:
        """Micro-batches in order, so that the rollouts of a group lie together and their prompt is computed once."""
        for indices in split_by_tokens([len(sequence.token_ids) for sequence in sequences], max_tokens):
            chosen = [sequences[index] for index in indices]
            packed = pack([sequence.columns for sequence in chosen], share_prefix=True)
            yield chosen, packed.to(self.policy.device)

    def _policy_log_probs(self, packed: PackedBatch, temperature: float) -> Tensor:
        """Log-probabilities of policy tokens alone, float32 [policy_tokens], in packed order."""
        return self.policy.forward_log_probs(packed, temperature=temperature).log_probs[packed.loss_mask]

    @torch.no_grad()
    def _frozen_log_probs(
        self, sequences: Sequence[WeightedSequence], temperature: float, max_tokens: int
    ) -> dict[int, Tensor]:
        """Log-probabilities of the policy tokens of each sequence, by identity of the sequence."""
        found: dict[int, Tensor] = {}
        for chosen, packed in self._packed(sequences, max_tokens):
            log_probs = self._policy_log_probs(packed, temperature)
            split = torch.split(log_probs, [sequence.policy_tokens for sequence in chosen])
            found.update((id(sequence), part) for sequence, part in zip(chosen, split, strict=True))
        return found

    def _accumulate(
        self,
        sequences: Sequence[WeightedSequence],
        old: Mapping[int, Tensor] | None,
        temperature: float,
        settings: LossSettings,
        sums: _Sums,
        *,
        measure_mismatch: bool,
    ) -> None:
        weight_of = dict(
            zip(
                map(id, sequences),
                sequence_token_weights(
                    [s.policy_tokens for s in sequences], [s.group for s in sequences], settings.aggregation
                ),
                strict=True,
            )
        )
        for chosen, packed in self._packed(sequences, settings.micro_batch_tokens):
            output = self.policy.forward_log_probs(packed, temperature=temperature, with_entropy=True)
            log_probs = output.log_probs[packed.loss_mask]
            assert output.entropy is not None, "asked for"
            entropy = output.entropy[packed.loss_mask]
            counts = torch.tensor([s.policy_tokens for s in chosen], device=log_probs.device)
            frozen = log_probs.detach() if old is None else torch.cat([old[id(s)] for s in chosen])
            result = clipped_policy_loss(
                log_probs,
                frozen,
                torch.tensor([s.advantage for s in chosen], device=log_probs.device).repeat_interleave(counts),
                torch.tensor([weight_of[id(s)] for s in chosen], device=log_probs.device).repeat_interleave(counts),
                settings.clip_low,
                settings.clip_high,
            )
            result.loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            sums.loss += float(result.loss.detach())
            sums.ratio += result.ratio_sum
            sums.low += result.clipped_low
            sums.high += result.clipped_high
            sums.kl += result.kl_sum
            sums.entropy += float(entropy.sum())
            if measure_mismatch:
                _add_mismatch(sums, packed.engine_log_probs[packed.loss_mask], log_probs.detach())
            _count(sums, chosen)

    def _step(self, learning_rate: float) -> float:
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self._settings.max_grad_norm)
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return float(norm)


def _count(sums: _Sums, sequences: Sequence[WeightedSequence]) -> None:
    sums.tokens += sum(len(sequence.token_ids) for sequence in sequences)
    sums.policy_tokens += sum(sequence.policy_tokens for sequence in sequences)


def _add_mismatch(sums: _Sums, engine: Tensor, trainer: Tensor) -> None:
    """Adds |engine - trainer| over policy tokens whose engine log-probability is known."""
    known = engine.isfinite()
    sums.mismatch += float((engine[known] - trainer[known]).abs().sum())
    sums.mismatch_tokens += int(known.sum())


def _split_by_group(sequences: Sequence[WeightedSequence], parts: int) -> list[list[WeightedSequence]]:
    """Deals whole groups out over at most `parts` updates, in order of first appearance."""
    groups = list(dict.fromkeys(sequence.group for sequence in sequences))
    parts = min(parts, len(groups))
    part_of = {group: position % parts for position, group in enumerate(groups)}
    return [[s for s in sequences if part_of[s.group] == number] for number in range(parts)]
