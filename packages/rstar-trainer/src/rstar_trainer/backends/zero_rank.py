"""One DeepSpeed rank: its shard of the parameters and of the optimizer, and its share of every batch.

All ranks are given the whole batch and call the same method; each works out its own share (dealing.py). Weights of
tokens are those of the whole batch and gradients are summed over ranks, so the update is the one that a single process
makes, up to rounding. Nothing here knows of Ray: the ranks only need the variables that torch.distributed reads.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import deepspeed  # type: ignore[import-untyped]
import torch
import torch.distributed as dist
from torch import Tensor

from rstar_model.packing import pack
from rstar_model.weight_folder import WeightFolderWriter
from rstar_model.weights import WeightManifest, storage_dtype
from rstar_protos.errors import ServiceUnavailableError
from rstar_rollout.engines.base import WeightUpdateError
from rstar_trainer.backends.dealing import deal, passes_of_each_rank
from rstar_trainer.backends.zero_config import zero_config
from rstar_trainer.backends.zero_module import EnginePolicy, LogProbModule, ShardedPolicy
from rstar_trainer.canary import sing_canary
from rstar_trainer.loss_pass import LossPass, Share, plan_updates
from rstar_trainer.recipe import LearnerSettings, LossSettings, ModelSettings, OptimizerSettings
from rstar_trainer.sequences import WeightedSequence
from rstar_trainer.update_metrics import LossSums, UpdateMetrics
from rstar_trainer.weight_target import TransferTarget, missing_vllm

__all__ = ["RankSettings", "ZeroRank"]

_TAG = "learner"


@dataclass(frozen=True)
class RankSettings:
    """What all ranks of a learner are made from.

    Attributes:
        model_dir: Hugging Face folder of the initial policy, readable by every rank.
        model: autocast, gradient checkpointing, threads.
        optimizer: AdamW.
        learner: stage, dtype, offload, ranks.
        engine_dtype: dtype of the weights that engines load.
        seed: of torch's random numbers; the same on all ranks.
        canary_ids: see `TorchLearner`.
    """

    model_dir: Path
    model: ModelSettings
    optimizer: OptimizerSettings
    learner: LearnerSettings
    engine_dtype: str
    seed: int
    canary_ids: tuple[int, ...] = ()


class ZeroRank:
    """See the module text.

    Args:
        settings: the same for all ranks. `RANK`, `LOCAL_RANK`, `WORLD_SIZE`, `MASTER_ADDR` and `MASTER_PORT` are set.
        store: of torch.distributed, where the ranks meet; None: rank 0 opens one at that address and port.
    """

    def __init__(self, settings: RankSettings, store: Any = None) -> None:
        self._settings = settings
        on_gpu = torch.cuda.is_available()
        # Its collectives over shared memory, for the CPU, would have to be compiled first.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        backend, patience = "nccl" if on_gpu else "gloo", timedelta(seconds=settings.learner.patience_seconds)
        if store is not None:  # DeepSpeed takes over the group that is there
            rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
            dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=patience)
        deepspeed.init_distributed(backend, timeout=patience)
        if settings.model.threads:
            torch.set_num_threads(settings.model.threads)
        torch.manual_seed(settings.seed)
        # A cast copy of a parameter that is kept until the end of the pass would undo its sharding.
        torch.set_autocast_cache_enabled(settings.learner.zero_stage < 3)
        self._config = zero_config(settings.learner, settings.optimizer, on_gpu=on_gpu)
        self._device = f"cuda:{os.environ['LOCAL_RANK']}" if on_gpu else "cpu"
        self._rank, self._ranks = dist.get_rank(), dist.get_world_size()
        # Neighbouring ranks that share their sequences; they are dealt the same ones.
        self._together = settings.learner.sequence_parallel
        self._policy = self._load_policy()
        if self._together > 1:
            from rstar_trainer.backends.sequence_parallel import SequenceParallel

            self._policy.sequence = SequenceParallel(self._together, self._policy.config)
        self._engine: Any = self._make_engine()
        self._sender: Any = None  # an `EngineSender`, which needs vLLM
        # Of the node that rank 0 is on; without a node of its own it is the machine that engines see.
        self._address = None if settings.learner.ray_address == "local" else os.environ["MASTER_ADDR"]
        self._backwards_left = 0
        self._pass = LossPass(
            EnginePolicy(self._engine),  # type: ignore[arg-type]  # it has all that a pass asks of a policy
            self._backward,
        )

    def _load_policy(self) -> ShardedPolicy:
        settings = self._settings
        return ShardedPolicy.load(  # type: ignore[return-value]  # load makes the class it is called on
            settings.model_dir,
            dtype="float32",
            autocast=settings.model.autocast if settings.learner.dtype == "float32" else None,
            gradient_checkpointing=settings.model.gradient_checkpointing,
            device=self._device,
        )

    def _make_engine(self) -> Any:
        optimizer = self._settings.optimizer
        module = LogProbModule(self._policy)
        parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        adam = torch.optim.AdamW(
            parameters,
            lr=0.0,  # set before every step
            betas=optimizer.betas,
            eps=optimizer.eps,
            weight_decay=optimizer.weight_decay,
            fused=True,
        )
        if self._settings.learner.zero_stage == 3:
            # The projection onto the vocabulary reads the weight itself, outside the module that owns it.
            head = self._policy.model.get_output_embeddings()
            engine, *_ = deepspeed.initialize(model=module, optimizer=adam, config=self._config)
            for parameter in head.parameters():
                deepspeed.zero.register_external_parameter(module, parameter)
        else:
            engine, *_ = deepspeed.initialize(model=module, optimizer=adam, config=self._config)
        self._forget_moments(engine)
        return engine

    def supervised_update(
        self, sequences: Sequence[WeightedSequence], learning_rate: float, micro_batch_tokens: int
    ) -> UpdateMetrics:
        """As `Learner.supervised_update`; the same figures on every rank."""
        start = time.perf_counter()
        total = sum(sequence.policy_tokens for sequence in sequences)
        own, passes, filling = self._own(sequences, micro_batch_tokens)
        self._backwards_left = passes
        sums = self._pass.supervised([sequences[index] for index in own], total, micro_batch_tokens)
        self._fill(sequences, filling)
        norm = self._step(learning_rate)
        return UpdateMetrics.of_supervised(self._over_ranks(sums), norm, time.perf_counter() - start)

    def policy_update(
        self,
        sequences: Sequence[WeightedSequence],
        learning_rate: float,
        temperature: float,
        loss: LossSettings,
    ) -> UpdateMetrics:
        """As `Learner.policy_update`; the same figures on every rank.

        Raises:
            ValueError: there is nothing to learn from.
        """
        start = time.perf_counter()
        planned = plan_updates(sequences, loss)
        updates = [self._dealt(shares, loss.micro_batch_tokens) for shares in planned]
        if len(updates) > 1:
            updates = [self._with_old_log_probs(update, temperature, loss.micro_batch_tokens) for update in updates]
        sums, norm = LossSums(), math.nan
        for number, update in enumerate(updates):
            self._backwards_left = update.passes
            sums.add(self._pass.policy(update.own, temperature, loss, measure_mismatch=number == 0))
            self._fill(sequences, update.filling)
            norm = self._step(learning_rate)
        groups = len({sequence.group for sequence in sequences})
        return UpdateMetrics.of_policy(
            self._over_ranks(sums),
            updates=len(updates),
            groups=groups,
            grad_norm=norm,
            seconds=time.perf_counter() - start,
        )

    def reset_optimizer(self) -> None:
        """Forgets the optimizer's moments and step count."""
        self._forget_moments(self._engine)

    def write_weights(self, folder: Path, version: int) -> WeightManifest | None:
        """Writes the folder an engine loads; the manifest on rank 0, None on the others.

        Parameters are gathered one at a time, so memory is bounded by the largest one and one file of the folder.
        """
        settings, writer = self._settings, None
        canary = sing_canary(EnginePolicy(self._engine), settings.canary_ids) if settings.canary_ids else None
        if self._rank == 0:
            writer = WeightFolderWriter(
                folder,
                version,
                settings.engine_dtype,
                self._policy.config,
                settings.model_dir,
                digests=canary is not None,
            )
        try:
            for name, tensor in self._full_parameters():
                if writer is not None:
                    writer.add(name, tensor)
            return None if writer is None else writer.finish(canary)
        finally:
            if writer is not None:
                writer.close()

    def meet_engines(self, target: TransferTarget, version: int) -> str:
        """Has the engines expect what `send_weights` sends; why they do not, on rank 0.

        What they refuse is an answer and no exception: it is no fault of a rank.

        Raises:
            UserInputError: vLLM is not installed here.
        """
        if self._sender is None:
            self._sender = self._new_sender()
        return _refusal(lambda: self._sender.meet(target, version))

    def send_weights(self) -> WeightManifest | str | None:
        """Sends to the engines that were met; what was sent or why it was refused on rank 0, None on the others.

        Parameters are gathered one at a time.
        """
        settings = self._settings
        canary = sing_canary(EnginePolicy(self._engine), settings.canary_ids) if settings.canary_ids else None
        sent: list[WeightManifest | None] = []
        refused = _refusal(lambda: sent.append(self._sender.send(settings.engine_dtype, canary)))
        return refused or sent[0]

    def _new_sender(self) -> Any:
        try:
            from rstar_trainer.backends.engine_transfer import EngineSender, ParameterSource
        except ImportError as error:
            raise missing_vllm(error) from error
        shapes = [
            (name, tuple(getattr(parameter, "ds_shape", parameter.shape)))
            for name, parameter in self._policy.model.named_parameters()
        ]
        dtype = storage_dtype(self._settings.engine_dtype)
        source = ParameterSource(self._full_parameters, shapes, dtype, digest=self._rank == 0)
        return EngineSender(source, self._rank, self._address)

    def save_pretrained(self, folder: Path) -> None:
        """Writes an ordinary Hugging Face folder with float32 weights, on rank 0."""
        writer = None
        if self._rank == 0:
            writer = WeightFolderWriter(folder, 0, "float32", self._policy.config, self._settings.model_dir)
        for name, tensor in self._full_parameters(master=True):
            if writer is not None:
                writer.add(name, tensor)
        if writer is not None:
            writer.finish(with_manifest=False)

    def save_shards(self, folder: Path) -> None:
        """Writes this rank's part of everything that a bit-equal continuation needs into a folder all ranks share."""
        self._engine.save_checkpoint(str(folder), tag=_TAG, save_latest=False)
        torch.save(torch.get_rng_state(), folder / f"random-{self._rank:05d}.pt")

    def load_shards(self, folder: Path) -> None:
        """Takes over what `save_shards` wrote with the same number of ranks and the same stage."""
        self._engine.load_checkpoint(str(folder), tag=_TAG, load_lr_scheduler_states=False)
        torch.set_rng_state(torch.load(folder / f"random-{self._rank:05d}.pt", weights_only=True))

    def process_id(self) -> int:
        """Of this rank."""
        return os.getpid()

    def close(self) -> None:
        """Leaves the process group."""
        if self._sender is not None:
            self._sender.close()
        if dist.is_initialized():
            dist.destroy_process_group()

    def _own(self, sequences: Sequence[WeightedSequence], max_tokens: int) -> tuple[list[int], int, int]:
        """Indices of this rank's sequences, passes that every rank makes, and how many of them are to be filled."""
        lengths = [len(sequence.token_ids) for sequence in sequences]
        shares = deal(lengths, self._ranks // self._together)
        passes = passes_of_each_rank(lengths, shares, max_tokens)
        number = self._rank // self._together
        return shares[number], max(passes), max(passes) - passes[number]

    def _dealt(self, shares: Sequence[Share], max_tokens: int) -> _Update:
        sequences = [share.sequence for share in shares]
        own, passes, filling = self._own(sequences, max_tokens)
        return _Update(sequences, [shares[index] for index in own], passes, filling)

    @torch.no_grad()
    def _with_old_log_probs(self, update: _Update, temperature: float, max_tokens: int) -> _Update:
        own = self._pass.with_old_log_probs(update.own, temperature, max_tokens)
        for _ in range(update.filling):
            self._filling_pass(update.sequences)
        return replace(update, own=own)

    def _fill(self, sequences: Sequence[WeightedSequence], count: int) -> None:
        """Passes without any effect, which the other ranks need to get on with theirs."""
        for _ in range(count):
            self._backward(self._filling_pass(sequences).sum() * 0.0)

    def _filling_pass(self, sequences: Sequence[WeightedSequence]) -> Tensor:
        shortest = min((s for s in sequences if s.policy_tokens), key=lambda s: len(s.token_ids))
        log_probs: Tensor = self._engine(pack([shortest.columns]).to(self._device), 1.0, False)[0]
        return log_probs

    def _backward(self, loss: Tensor) -> None:
        """DeepSpeed takes the mean over ranks; losses are shares of one sum."""
        self._backwards_left -= 1
        self._engine.set_gradient_accumulation_boundary(self._backwards_left == 0)
        self._engine.backward(loss * self._ranks)

    def _step(self, learning_rate: float) -> float:
        """Applies the gradients of the whole batch; their norm before clipping."""
        optimizer = self._engine.optimizer
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
        if self._settings.learner.zero_stage == 0:
            parameters = [p for p in self._engine.module.parameters() if p.grad is not None]
            norm = float(torch.nn.utils.clip_grad_norm_(parameters, self._settings.optimizer.max_grad_norm))
            self._engine.step()
            return norm
        self._engine.step()
        return float(self._engine.get_global_grad_norm())

    @staticmethod
    def _forget_moments(engine: Any) -> None:
        # A ZeRO optimizer wraps the one that holds the moments; DeepSpeed starts some with a step of zero gradients.
        optimizer = getattr(engine.optimizer, "optimizer", engine.optimizer)
        optimizer.state.clear()

    def _over_ranks(self, sums: LossSums) -> LossSums:
        values = torch.tensor(sums.to_vector(), dtype=torch.float64, device=self._device)
        if self._rank % self._together:  # the first of those who share sequences counts them
            values.zero_()
        dist.all_reduce(values)
        return LossSums.from_vector(values.tolist())

    def _full_parameters(self, *, master: bool = False) -> Iterator[tuple[str, Tensor]]:
        """Every parameter by its name in the model, whole, one after another; valid until the next is asked for.

        Args:
            master: float32 values of the optimizer, where parameters are bfloat16 copies of them.
        """
        for name, parameter in self._policy.model.named_parameters():
            if master and self._settings.learner.dtype == "bfloat16":
                yield name, deepspeed.utils.safe_get_full_fp32_param(parameter)
                continue
            with deepspeed.zero.GatheredParameters([parameter], enabled=hasattr(parameter, "ds_id")):
                yield name, parameter.detach()


def _refusal(call: Callable[[], None]) -> str:
    try:
        call()
    except (WeightUpdateError, ServiceUnavailableError) as error:
        return str(error) or type(error).__name__
    return ""


@dataclass(frozen=True)
class _Update:
    """One update as a rank sees it: all sequences, its own shares, passes of every rank, those it has to fill."""

    sequences: list[WeightedSequence]
    own: list[Share]
    passes: int
    filling: int
