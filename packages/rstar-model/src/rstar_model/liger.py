"""Liger's fused GPU kernels as an option: norms, rotary embedding and feed-forward layers of a loaded model.

Its fused cross-entropy is not used: log-probabilities of chosen tokens are computed in chunks (log_probs.py).
"""

from __future__ import annotations

import importlib
from typing import Any

import torch

from rstar_protos.errors import UserInputError

__all__ = ["use_liger_kernels"]


def use_liger_kernels(model: Any, device: str) -> None:
    """Put the kernels into a transformers model, in place.

    Args:
        model: of a family that Liger knows.
        device: that the model will lie on.

    Raises:
        UserInputError: no GPU, Liger is not installed, or it does not know the model.
    """
    accepted = "off, or a GPU with the package liger-kernel"
    if torch.device(device).type != "cuda":
        raise UserInputError("liger", f"device {device}", accepted)
    try:
        patch = importlib.import_module("liger_kernel.transformers")._apply_liger_kernel_to_instance
    except (ImportError, AttributeError) as error:
        raise UserInputError("liger", f"not usable ({error})", accepted) from error
    family = model.config.model_type
    if family not in importlib.import_module("liger_kernel.transformers.monkey_patch").MODEL_TYPE_TO_APPLY_LIGER_FN:
        raise UserInputError("liger", f"a {family} model", "a model of a family that Liger knows, or off")
    patch(model, fused_linear_cross_entropy=False, cross_entropy=False)
