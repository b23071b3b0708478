"""The learner: what turns sequences into a new policy.

`Learner` is the seam; `TorchLearner` is the single-process one. Parameters have fp32 master weights and the forward
pass runs under bf16 autocast: with bf16 weights alone AdamW at a learning rate of 1e-6 rounds every update away.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from rstar_model.convert import CHECKPOINT_FILE
from rstar_model.policy import Policy
from rstar_model.weights import Canary, WeightManifest, model_tensors, storage_dtype, write_weights
from rstar_protos.errors import UserInputError
from rstar_trainer.bounded import UnendedError, within
from rstar_trainer.canary import sing_canary
from rstar_trainer.host_copy import host_copy
from rstar_trainer.loss_pass import LossPass, plan_updates
from rstar_trainer.recipe import LossSettings, OptimizerSettings
from rstar_trainer.sequences import WeightedSequence
from rstar_trainer.update_metrics import LossSums, UpdateMetrics
from rstar_trainer.weight_target import TransferTarget, missing_vllm

__all__ = ["Learner", "TorchLearner", "UpdateMetrics"]


class Learner(Protocol):
    """Owns the parameters and the optimizer.

    One whose parameters lie in other processes may raise `learner_faults.LearnerLostError` from any method.
    """

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

    def send_weights(self, target: TransferTarget, version: int) -> WeightManifest:
        """Has the engines receive the parameters without files, and check them; returns version and checksum.

        Raises:
            WeightUpdateError: the engines refuse; they generate nothing until an update succeeds.
            ServiceUnavailableError: their service is away.
            UserInputError: vLLM, whose transfer it is, is not installed here.
        """

    def save_pretrained(self, folder: Path) -> None:
        """Writes an ordinary Hugging Face folder."""

    def begin_save(self, folder: Path) -> Callable[[], None]:
        """Copies everything that a bit-equal continuation needs, as it is now.

        Returns:
            What writes it as files into the folder. It may be called in another thread while the learner goes on, so
            it touches nothing that the learner changes.
        """

    def load_saved(self, folder: Path) -> None:
        """Takes over what `begin_save` wrote.

        Raises:
            UserInputError: the files are of another model, or damaged.
        """

    def close(self) -> None:
        """Ends whatever processes it has; nothing else may be called after it."""


class TorchLearner:
    """Learner in this process, on one device.

    Args:
        policy: with fp32 parameters.
        optimizer: AdamW settings.
        engine_dtype: dtype of the weights that engines load, "bfloat16" or "float32".
        canary_ids: for engines that check what they have loaded: tokens whose log-probabilities are sent along, with
            a digest of each parameter; none: engines that compare what they read with what was written.
    """

    def __init__(
        self,
        policy: Policy,
        optimizer: OptimizerSettings,
        engine_dtype: str = "bfloat16",
        canary_ids: Sequence[int] = (),
    ) -> None:
        self.policy = policy
        self._settings = optimizer
        self._engine_dtype = engine_dtype
        self._canary_ids = tuple(canary_ids)
        self._pass = LossPass(policy)
        self._parameters = [p for p in policy.model.parameters() if p.requires_grad]
        self._optimizer = self._new_optimizer()
        self._sender: Any = None  # an `EngineSender`, which needs vLLM

    def supervised_update(
        self, sequences: Sequence[WeightedSequence], learning_rate: float, micro_batch_tokens: int
    ) -> UpdateMetrics:
        """One update on the token mean of the negative log-likelihood (assistant tokens only)."""
        start = time.perf_counter()
        total = sum(sequence.policy_tokens for sequence in sequences)
        sums = self._pass.supervised(sequences, total, micro_batch_tokens)
        norm = self._step(learning_rate)
        return UpdateMetrics.of_supervised(sums, norm, time.perf_counter() - start)

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
        start = time.perf_counter()
        updates = plan_updates(sequences, loss)
        if len(updates) > 1:
            updates = [self._pass.with_old_log_probs(u, temperature, loss.micro_batch_tokens) for u in updates]
        sums, norm = LossSums(), math.nan
        for number, shares in enumerate(updates):
            sums.add(self._pass.policy(shares, temperature, loss, measure_mismatch=number == 0))
            norm = self._step(learning_rate)
        groups = len({sequence.group for sequence in sequences})
        seconds = time.perf_counter() - start
        return UpdateMetrics.of_policy(sums, updates=len(updates), groups=groups, grad_norm=norm, seconds=seconds)

    def reset_optimizer(self) -> None:
        """Forgets the optimizer's moments (paper section 4: at the switch to stage 3)."""
        self._optimizer = self._new_optimizer()

    def write_weights(self, folder: Path, version: int) -> WeightManifest:
        """Writes the folder an engine loads, in the engine's dtype."""
        canary = sing_canary(self.policy, self._canary_ids) if self._canary_ids else None
        return write_weights(
            self.policy, folder, version, dtype=self._engine_dtype, digests=canary is not None, canary=canary
        )

    def send_weights(self, target: TransferTarget, version: int) -> WeightManifest:
        """See `Learner`.

        Raises:
            UnendedError: an engine has stopped in the midst of it, and left this process waiting.
        """
        if self._sender is None:
            self._sender = self._new_sender()
        canary = sing_canary(self.policy, self._canary_ids) if self._canary_ids else None
        send = functools.partial(self._send, target, version, canary)
        try:
            return within(target.seconds, "sending weights", send)
        except UnendedError:
            self._sender = None  # those that it met do not answer: it cannot take leave of them
            raise

    def _send(self, target: TransferTarget, version: int, canary: Canary | None) -> WeightManifest:
        self._sender.meet(target, version)
        manifest: WeightManifest = self._sender.send(self._engine_dtype, canary)
        return manifest

    def _new_sender(self) -> Any:
        try:
            from rstar_trainer.backends.engine_transfer import EngineSender, ParameterSource
        except ImportError as error:
            raise missing_vllm(error) from error

        def parameters() -> Iterator[tuple[str, torch.Tensor]]:
            return iter(model_tensors(self.policy.model).items())

        shapes = [(name, tuple(tensor.shape)) for name, tensor in parameters()]
        return EngineSender(ParameterSource(parameters, shapes, storage_dtype(self._engine_dtype), digest=True))

    def save_pretrained(self, folder: Path) -> None:
        """Writes an ordinary Hugging Face folder with fp32 safetensors and the tokenizer."""
        self.policy.save(folder)

    def begin_save(self, folder: Path) -> Callable[[], None]:
        """See `Learner`: one file, `learner.pt`."""
        return functools.partial(torch.save, host_copy(self.state_dict()), folder / CHECKPOINT_FILE)

    def load_saved(self, folder: Path) -> None:
        """See `Learner`."""
        path = folder / CHECKPOINT_FILE
        try:
            self.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
        except Exception as error:  # unpickling, missing keys and shapes each fail in their own way
            reason = str(error).partition("\n")[0]
            raise UserInputError("checkpoint", str(path), f"a folder that can be read ({reason})") from error

    def close(self) -> None:
        """See `Learner`."""
        if self._sender is not None:
            self._sender.close()

    def state_dict(self) -> Mapping[str, Any]:
        """Parameters, optimizer moments and random-number states; they change with the learner."""
        return {
            **self.policy.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "torch_rng": torch.get_rng_state(),
            "cuda_rng": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes over what `state_dict` gave."""
        self.policy.load_state_dict(state)
        self._optimizer = self._new_optimizer()
        self._optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["torch_rng"])
        if torch.cuda.is_available():
            torch.cuda.set_rng_state_all(state["cuda_rng"])

    def _new_optimizer(self) -> torch.optim.AdamW:
        return torch.optim.AdamW(
            self._parameters,
            lr=0.0,  # set before every step
            betas=self._settings.betas,
            eps=self._settings.eps,
            weight_decay=self._settings.weight_decay,
            fused=True,
        )

    def _step(self, learning_rate: float) -> float:
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self._settings.max_grad_norm)
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)
        return float(norm)
