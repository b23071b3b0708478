"""The tensors of a model as everybody but its trainer knows them: each storage once, adapters merged."""

from __future__ import annotations

from typing import Any

import torch

from rstar_model.lora import merged_layers

__all__ = ["model_tensors"]


def model_tensors(model: Any) -> dict[str, torch.Tensor]:
    """Parameters and saved buffers of a model by name, each storage once: a tied weight has its first name only.

    Low-rank adapters are added to the weights they adapt; the names are those of the model without adapters.
    """
    merged = merged_layers(model)
    tensors = dict(model.named_parameters())
    every_name = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    for name, value in model.state_dict().items():
        if name not in every_name:
            tensors[name] = value
    if merged:
        adapted = tuple(f"{layer}." for layer in merged)
        tensors = {name: value for name, value in tensors.items() if not name.startswith(adapted)}
        for layer, parts in merged.items():
            tensors.update({f"{layer}.{part}": value for part, value in parts.items()})
    return {name: value.detach() for name, value in tensors.items()}
