"""The policy: a causal language model of a Hugging Face folder, and the log-probabilities that training needs."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from rstar_model import attention
from rstar_model.exact_norms import widen_norms
from rstar_model.liger import use_liger_kernels
from rstar_model.log_probs import chosen_log_probs
from rstar_model.lora import LoraSettings, adapter_state, add_adapters, load_adapter_state
from rstar_model.packing import PackedBatch
from rstar_model.tensors import model_tensors
from rstar_protos.errors import UserInputError

__all__ = ["LogProbs", "Policy", "copy_tokenizer_files"]

_DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}

_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
)


@dataclass(frozen=True)
class LogProbs:
    """Values aligned with a packed row: index t belongs to token t, 0 where none was computed.

    ``log_probs`` and ``entropy`` are [T] float32 (float64 for a float64 policy), in nats; ``entropy`` is that of the
    distribution that token t was drawn from, without gradient, or None if it was not asked for.
    """

    log_probs: torch.Tensor
    entropy: torch.Tensor | None


class Policy:
    """A causal language model that is trained.

    Args:
        model: a transformers model with the packed attention (``Policy.load`` and ``from_config`` see to it).
        autocast: dtype of the matrix products over the master weights, or None to compute in the weights' dtype.
        source: folder that the tokenizer files are copied from when the policy is saved.
        lora: of the adapters to put into the model; None trains all parameters.
    """

    def __init__(
        self,
        model: Any,
        *,
        autocast: str | None = "bfloat16",
        source: Path | None = None,
        lora: LoraSettings | None = None,
    ) -> None:
        if autocast is not None:
            _dtype("autocast", autocast)
        self.model = model
        self.autocast = autocast
        self.source = source
        self.lora = lora
        if lora is not None:
            add_adapters(model, lora)
        if next(iter(model.parameters())).dtype == torch.float64:
            widen_norms(model)

    @classmethod
    def load(
        cls,
        folder: str | Path,
        dtype: str = "float32",
        autocast: str | None = "bfloat16",
        gradient_checkpointing: bool = False,
        seed: int = 0,
        device: str = "cpu",
        lora: LoraSettings | None = None,
        liger: bool = False,
    ) -> Policy:
        """Load a Hugging Face folder.

        Args:
            folder: with ``config.json`` and safetensors.
            dtype: of the master weights. With bfloat16 AdamW at small learning rates rounds every update away.
            autocast: see ``Policy``.
            gradient_checkpointing: compute activations again in the backward pass to save memory.
            seed: for weights that the folder lacks.
            device: where the model lies.
            lora: train adapters of this kind alone.
            liger: use Liger's GPU kernels for norms, rotary embedding and feed-forward layers.

        Raises:
            UserInputError: not a model folder, an unknown dtype, or kernels that this machine cannot run.
        """
        folder = Path(folder)
        if not (folder / "config.json").is_file():
            raise UserInputError("model folder", str(folder), "a Hugging Face folder with config.json")
        attention.register()
        torch.manual_seed(seed)
        try:
            model: Any = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=_dtype("dtype", dtype),
                attn_implementation=attention.ATTENTION_NAME,
                local_files_only=True,
            )
        except (OSError, ValueError) as error:
            raise UserInputError(
                "model folder", f"{folder}: {error}", "a causal language model in safetensors"
            ) from error
        if liger:
            use_liger_kernels(model, device)
        policy = cls(model.to(device), autocast=autocast, source=folder, lora=lora)
        if gradient_checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
            model.train()  # transformers checkpoints in training mode only
        return policy

    @classmethod
    def from_config(
        cls,
        config: Any,
        dtype: str = "float32",
        autocast: str | None = None,
        seed: int = 0,
        lora: LoraSettings | None = None,
    ) -> Policy:
        """A model with random weights, for tests and measurements."""
        attention.register()
        torch.manual_seed(seed)
        make_model: Any = AutoModelForCausalLM.from_config
        model = make_model(config, dtype=_dtype("dtype", dtype), attn_implementation=attention.ATTENTION_NAME)
        return cls(model, autocast=autocast, lora=lora)

    @property
    def config(self) -> Any:
        """The transformers configuration."""
        return self.model.config

    @property
    def device(self) -> torch.device:
        """Where the parameters lie."""
        device: torch.device = next(iter(self.model.parameters())).device
        return device

    def save(self, folder: str | Path) -> None:
        """Write an ordinary Hugging Face folder: safetensors with adapters merged, configuration, tokenizer files."""
        folder = Path(folder)
        self.model.save_pretrained(folder, state_dict=model_tensors(self.model))
        copy_tokenizer_files(self.source, folder)

    def state_dict(self) -> dict[str, Any]:
        """What training changes: ``model``, all parameters or those of the adapters, and ``lora``, their settings.

        The tensors are the model's own and change with it.
        """
        if self.lora is None:
            return {"model": self.model.state_dict(), "lora": None}
        return {"model": adapter_state(self.model), "lora": self.lora.to_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` gave; further entries are ignored.

        Raises:
            ValueError: the state has other adapters than the policy.
            RuntimeError: it is of another model.
        """
        settings = state.get("lora")
        if (None if settings is None else LoraSettings.from_dict(settings)) != self.lora:
            raise ValueError(f"its adapters are {settings or 'none'}, the policy's {self.lora or 'none'}")
        if self.lora is None:
            self.model.load_state_dict(state["model"])
        else:
            load_adapter_state(self.model, state["model"])

    def forward_log_probs(
        self,
        packed: PackedBatch,
        temperature: float = 1.0,
        chunk_tokens: int = 1024,
        with_entropy: bool = False,
        only_mask: bool = True,
    ) -> LogProbs:
        """Log-probability of each token given those before it.

        Args:
            packed: the row.
            temperature: that the tokens were sampled at.
            chunk_tokens: positions whose logits exist at one time.
            with_entropy: also the entropy of the distributions.
            only_mask: only for tokens in ``packed.loss_mask``; the vocabulary projection is skipped for the others.
        """
        packed = packed.to(self.device)
        wanted = packed.previous >= 0
        if only_mask:
            wanted &= packed.loss_mask
        at = wanted.nonzero().squeeze(1)
        hidden = self._hidden(packed)
        states = hidden.index_select(0, packed.previous[at])
        values, entropy = self._project(states, packed.token_ids[at], temperature, chunk_tokens, with_entropy)
        return LogProbs(
            _placed(values, at, len(packed)),
            None if entropy is None else _placed(entropy, at, len(packed)),
        )

    def _project(
        self, states: torch.Tensor, targets: torch.Tensor, temperature: float, chunk_tokens: int, with_entropy: bool
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Log-probabilities [n] of `targets` [n] and entropies [n] or None, from hidden states [n, hidden size]."""
        head = self.model.get_output_embeddings()
        return chosen_log_probs(
            states,
            head.weight,
            targets,
            bias=getattr(head, "bias", None),
            temperature=temperature,
            chunk_tokens=chunk_tokens,
            compute_dtype=self._projection_dtype(),
            with_entropy=with_entropy,
            fast_products=self.autocast is not None or head.weight.dtype == torch.bfloat16,
        )

    def _hidden(self, packed: PackedBatch, start: int = 0, end: int | None = None) -> torch.Tensor:
        """Last hidden states of the row's tokens [start, end), as [tokens, hidden size]."""
        backbone = getattr(self.model, self.model.base_model_prefix)
        with self._autocast():
            output = backbone(
                input_ids=packed.token_ids[None, start:end],
                position_ids=packed.position_ids[None, start:end],
                use_cache=False,
                rstar_batch=packed,
            )
        states: torch.Tensor = output.last_hidden_state[0]
        return states

    @contextlib.contextmanager
    def _autocast(self) -> Iterator[None]:
        if self.autocast is None:
            yield
        else:
            with torch.autocast(self.device.type, dtype=_DTYPES[self.autocast]):
                yield

    def _projection_dtype(self) -> torch.dtype:
        """Logits come from products in the master weights' dtype: rounding them to bfloat16 costs 0.1 nats."""
        dtype: torch.dtype = self.model.get_output_embeddings().weight.dtype
        return dtype


def copy_tokenizer_files(source: Path | None, target: Path) -> None:
    """Copy whatever tokenizer files a model folder has."""
    if source is None or source.resolve() == target.resolve():
        return
    for name in _TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, target / name)


def _placed(values: torch.Tensor, at: torch.Tensor, length: int) -> torch.Tensor:
    return values.new_zeros(length).index_copy(0, at, values)


def _dtype(field: str, name: str) -> torch.dtype:
    if name not in _DTYPES:
        raise UserInputError(field, name, "one of " + ", ".join(_DTYPES))
    return _DTYPES[name]
