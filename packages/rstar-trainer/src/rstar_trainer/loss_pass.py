"""Forward and backward passes of the losses over packed micro-batches.

What a learner does with the gradients - optimizer, ranks, sharding - is the learner's. A learner of several ranks
plans the updates from the whole batch, gives each rank some of the shares, and adds up gradients and sums: weights are
those of the whole batch, so the gradient does not depend on who computes which share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from rstar_model.packing import PackedBatch, pack, split_by_tokens
from rstar_model.policy import Policy
from rstar_trainer.objective import (
    clipped_policy_loss,
    engine_mismatch,
    sequence_token_weights,
    truncated_engine_weights,
)
from rstar_trainer.recipe import LossSettings
from rstar_trainer.sequences import WeightedSequence
from rstar_trainer.update_metrics import LossSums

__all__ = ["LossPass", "Share", "plan_updates"]


@dataclass(frozen=True, eq=False)
class Share:
    """One sequence's part of an update.

    Attributes:
        sequence: what is learned from.
        token_weight: weight of each of its policy tokens in the loss of the whole batch.
        old_log_probs: [policy_tokens] of the policy at the start of the step; None: those of the pass itself.
    """

    sequence: WeightedSequence
    token_weight: float
    old_log_probs: Tensor | None = None


def plan_updates(sequences: Sequence[WeightedSequence], settings: LossSettings) -> list[list[Share]]:
    """The updates of one rollout step: whole groups dealt out over at most `updates_per_step` updates.

    Raises:
        ValueError: there is nothing to learn from.
    """
    if not sequences:
        raise ValueError("a policy update needs at least one accepted group")
    groups = list(dict.fromkeys(sequence.group for sequence in sequences))
    parts = min(settings.updates_per_step, len(groups))
    part_of = {group: position % parts for position, group in enumerate(groups)}
    updates = []
    for number in range(parts):
        chosen = [sequence for sequence in sequences if part_of[sequence.group] == number]
        weights = sequence_token_weights(
            [s.policy_tokens for s in chosen],
            [s.group for s in chosen],
            settings.aggregation,
            settings.constant_tokens,
        )
        updates.append([Share(*pair) for pair in zip(chosen, weights, strict=True)])
    return updates


class LossPass:
    """Passes of one policy.

    Args:
        policy: whose parameters get gradients.
        backward: of a micro-batch's loss; an engine that scales or reduces gradients brings its own.
    """

    def __init__(self, policy: Policy, backward: Callable[[Tensor], object] | None = None) -> None:
        self._policy = policy
        self._backward = backward or _plain_backward

    def supervised(self, sequences: Sequence[WeightedSequence], total_tokens: int, max_tokens: int) -> LossSums:
        """Token mean of the negative log-likelihood of the policy tokens (assistant tokens).

        Args:
            sequences: of this rank.
            total_tokens: policy tokens of the whole batch.
            max_tokens: of a micro-batch.
        """
        sums = LossSums()
        for indices, packed in self._packed(sequences, max_tokens):
            log_probs = self._policy.forward_log_probs(packed).log_probs[packed.loss_mask]
            loss = -log_probs.sum() / total_tokens
            self._backward(loss)
            sums.loss += float(loss.detach())
            _count(sums, [sequences[index] for index in indices])
        return sums

    @torch.no_grad()
    def with_old_log_probs(self, shares: Sequence[Share], temperature: float, max_tokens: int) -> list[Share]:
        """The same shares with the log-probabilities of the policy as it is now."""
        found: list[Share] = []
        sequences = [share.sequence for share in shares]
        for indices, packed in self._packed(sequences, max_tokens):
            values = self._policy.forward_log_probs(packed, temperature=temperature).log_probs[packed.loss_mask]
            parts = torch.split(values, [sequences[index].policy_tokens for index in indices])
            found += [replace(shares[index], old_log_probs=part) for index, part in zip(indices, parts, strict=True)]
        return found

    def policy(
        self, shares: Sequence[Share], temperature: float, settings: LossSettings, *, measure_mismatch: bool
    ) -> LossSums:
        """The clipped objective of one update.

        Args:
            shares: of this rank. Without `old_log_probs` the policy that generated is the one that is trained, and
                the pass's own log-probabilities, detached, are the old ones: the ratio is exactly 1.
            temperature: that the engine sampled at; log-probabilities are taken at the same one.
            settings: clipping, engine correction, micro-batch size.
            measure_mismatch: compare engine and trainer; meant for the first update, before the policy moved.
        """
        total = LossSums()
        for indices, packed in self._packed([share.sequence for share in shares], settings.micro_batch_tokens):
            chosen = [shares[index] for index in indices]
            output = self._policy.forward_log_probs(packed, temperature=temperature, with_entropy=True)
            log_probs = output.log_probs[packed.loss_mask]
            assert output.entropy is not None, "asked for"
            entropy = output.entropy[packed.loss_mask]
            old = _old_log_probs(chosen, log_probs)
            engine = packed.engine_log_probs[packed.loss_mask]
            cap = settings.engine_ratio_cap
            correction = None if cap is None else truncated_engine_weights(old, engine, cap)
            result = clipped_policy_loss(
                log_probs,
                old,
                _by_token([share.sequence.advantage for share in chosen], chosen, log_probs),
                _by_token([share.token_weight for share in chosen], chosen, log_probs),
                settings.clip_low,
                settings.clip_high,
                correction,
            )
            self._backward(result.loss)
            zero = log_probs.new_zeros(())
            mismatch = engine_mismatch(old, engine) if measure_mismatch else None
            # One transfer to the host a micro-batch, after its backward pass is queued.
            values = [
                result.loss.detach(),
                result.ratio_sum,
                result.clipped_low,
                result.clipped_high,
                result.kl_sum,
                entropy.sum(),
                mismatch.absolute_sum if mismatch else zero,
                mismatch.kl_sum if mismatch else zero,
                mismatch.tokens if mismatch else zero,
                zero + len(log_probs) if correction is None else correction.sum(),
                zero if correction is None or cap is None else (correction >= cap).sum(),
            ]
            sums = LossSums(*torch.stack([value.double() for value in values]).tolist())
            _count(sums, [share.sequence for share in chosen])
            total.add(sums)
        return total

    def _packed(
        self, sequences: Sequence[WeightedSequence], max_tokens: int
    ) -> Iterator[tuple[list[int], PackedBatch]]:
        """Micro-batches in order, so that the rollouts of a group lie together and their prompt is computed once."""
        for indices in split_by_tokens([len(sequence.token_ids) for sequence in sequences], max_tokens):
            # On a GPU a row of whole sequences is one flash-attention call, which knows no shared prefix.
            share = self._policy.device.type == "cpu"
            packed = pack([sequences[index].columns for index in indices], share_prefix=share)
            yield indices, packed.to(self._policy.device)


def _plain_backward(loss: Tensor) -> None:
    loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped


def _old_log_probs(shares: Sequence[Share], log_probs: Tensor) -> Tensor:
    known = [share.old_log_probs for share in shares if share.old_log_probs is not None]
    if not known:
        return log_probs.detach()
    assert len(known) == len(shares), "old log-probabilities are taken for all shares of a step or for none"
    return torch.cat(known)


def _by_token(values: Sequence[float], shares: Sequence[Share], like: Tensor) -> Tensor:
    """One value a sequence -> one a policy token, in the dtype of `like`."""
    counts = torch.tensor([share.sequence.policy_tokens for share in shares], device=like.device)
    return torch.tensor(values, dtype=like.dtype, device=like.device).repeat_interleave(counts)


def _count(sums: LossSums, sequences: Sequence[WeightedSequence]) -> None:
    sums.tokens += sum(len(sequence.token_ids) for sequence in sequences)
    sums.policy_tokens += sum(sequence.policy_tokens for sequence in sequences)
