"""Low-rank adapters (LoRA, arXiv 2106.09685) by the peft library, for those with little memory.

The base weights stay as they are and have neither gradient nor optimizer moments. Everybody else - engines, exported
folders, checksums - is given the merged weights, W + alpha / rank * B A, under the names of the model without adapters.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from rstar_protos.errors import UserInputError

__all__ = ["LoraSettings", "adapter_state", "add_adapters", "load_adapter_state", "merged_layers"]

_ADAPTER = "default"


@dataclass(frozen=True)
class LoraSettings:
    """Which layers get adapters, and how large they are.

    ``rank`` is r, the adapters are scaled by ``alpha`` / r, ``targets`` are the last parts of the names of linear
    layers. There is no dropout: the log-probability of a token has to be the same each time it is computed.
    """

    rank: int = 16
    alpha: float = 32.0
    targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

    def to_dict(self) -> dict[str, Any]:
        """For a checkpoint; ``LoraSettings.from_dict`` takes it."""
        return {**asdict(self), "targets": list(self.targets)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> LoraSettings:
        """What ``to_dict`` gave."""
        return cls(int(values["rank"]), float(values["alpha"]), tuple(values["targets"]))


def add_adapters(model: Any, settings: LoraSettings) -> None:
    """Put adapters into a model in place; from then on they alone require gradients. A new adapter adds nothing.

    Raises:
        UserInputError: peft is not installed, or no layer has a name among the targets.
    """
    try:
        peft: Any = importlib.import_module("peft")
    except ImportError as error:
        raise UserInputError(
            "lora", "peft not installed", "an installed rstar-model[lora] (pip install 'rstar-model[lora]')"
        ) from error
    config = peft.LoraConfig(
        r=settings.rank, lora_alpha=settings.alpha, target_modules=list(settings.targets), lora_dropout=0.0
    )
    try:
        peft.inject_adapter_in_model(config, model, adapter_name=_ADAPTER)
    except ValueError as error:
        raise UserInputError("lora.targets", ", ".join(settings.targets), "names of linear layers") from error
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(".lora_" in name)


def adapter_state(model: Any) -> dict[str, torch.Tensor]:
    """The adapters' parameters by name."""
    return {name: parameter.detach() for name, parameter in model.named_parameters() if ".lora_" in name}


def load_adapter_state(model: Any, state: Mapping[str, torch.Tensor]) -> None:
    """Take over what ``adapter_state`` gave.

    Raises:
        ValueError: the names are not those of the model's adapters.
    """
    own = adapter_state(model)
    if set(own) != set(state):
        raise ValueError(f"adapters {sorted(set(own) ^ set(state))[:3]} do not match")
    with torch.no_grad():
        for name, parameter in own.items():
            parameter.copy_(state[name])


@torch.no_grad()
def merged_layers(model: Any) -> dict[str, dict[str, torch.Tensor]]:
    """Weight (and bias) of each layer with an adapter, by the layer's name; empty for a model without adapters."""
    found: dict[str, dict[str, torch.Tensor]] = {}
    for name, module in model.named_modules():
        if hasattr(module, "lora_A") and hasattr(module, "get_delta_weight"):
            base = module.get_base_layer()
            delta = module.get_delta_weight(_ADAPTER)
            found[name] = {"weight": base.weight + delta.to(base.weight.dtype)}
            if base.bias is not None:
                found[name]["bias"] = base.bias
    return found
