"""Weights from a Hugging Face folder into a running model, checked against the sender's checksum."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

from rstar_model.weights import MANIFEST_NAME, read_manifest, state_checksum
from rstar_protos.errors import UserInputError
from rstar_rollout.engines.base import WeightUpdateError
from rstar_rollout.engines.packed_linear import pack_linears, repack
from rstar_rollout.engines.pool_attention import ATTENTION_NAME

__all__ = ["LoadedModel", "folder_checksum", "folder_tensors", "folder_version", "load_model", "take_weights"]

_LOADING = threading.Lock()  # transformers makes models under process-wide switches: one thread at a time


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to generate, and what is known of its weights."""

    model: torch.nn.Module
    version: int
    checksum: str
    max_tokens: int | None
    """Positions the model was made for."""


def load_model(folder: Path, dtype: str, device: str) -> LoadedModel:
    """A causal language model with `pool_attention`.

    The version is that of the folder's weight manifest, 0 without one.

    Raises:
        UserInputError: the folder holds no model that transformers can load.
    """
    if not (folder / "config.json").is_file():
        raise UserInputError("model folder", str(folder), "a Hugging Face model folder with config.json")
    try:
        with _LOADING:
            # Commands show progress of their own.
            transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
            model: Any = AutoModelForCausalLM.from_pretrained(
                folder, dtype=getattr(torch, dtype), attn_implementation=ATTENTION_NAME, local_files_only=True
            )
    except (OSError, ValueError) as error:
        raise UserInputError("model folder", str(folder), f"a loadable model ({error})") from error
    model = model.to(device).eval().requires_grad_(False)
    pack_linears(model)
    positions = getattr(model.config, "max_position_embeddings", None)
    return LoadedModel(model, folder_version(folder), folder_checksum(folder), positions)


def folder_version(folder: Path) -> int:
    """The weight version that the folder's manifest states; 0 without one."""
    return read_manifest(folder).version if (folder / MANIFEST_NAME).is_file() else 0


def folder_checksum(folder: Path) -> str:
    """`state_checksum` of the folder's tensors as stored."""
    return state_checksum(folder_tensors(folder))


def folder_tensors(folder: Path) -> dict[str, torch.Tensor]:
    """All tensors of the folder's safetensors files, as stored."""
    tensors: dict[str, torch.Tensor] = {}
    for path in sorted(folder.glob("*.safetensors")):
        tensors.update(load_file(path))
    if not tensors:
        raise WeightUpdateError(f"no safetensors files in {folder}")
    return tensors


@torch.no_grad()
def take_weights(model: torch.nn.Module, folder: Path, checksum: str) -> None:
    """Copy the folder's tensors into the model, after the checksum of what was read has been compared.

    Raises:
        WeightUpdateError: other bytes than the sender had, or tensors that do not fit the model.
    """
    tensors = folder_tensors(folder)
    found = state_checksum(tensors)
    if found != checksum:
        raise WeightUpdateError(f"checksum of {folder} is {found}, the sender's is {checksum}")
    parameters = dict(model.named_parameters(remove_duplicate=False))
    by_memory: dict[int, str] = {}
    for name, tensor in tensors.items():
        target = parameters.get(name)
        if target is None:
            raise WeightUpdateError(f"the model has no parameter {name}")
        if target.shape != tensor.shape:
            raise WeightUpdateError(f"{name} is {tuple(tensor.shape)}, the model has {tuple(target.shape)}")
        by_memory[target.data_ptr()] = name
    # Tied parameters share memory and may be stored once.
    missing = [name for name, target in parameters.items() if target.data_ptr() not in by_memory]
    if missing:
        raise WeightUpdateError(f"the update lacks {len(missing)} parameters, first {missing[0]}")
    for name, tensor in tensors.items():
        parameters[name].copy_(tensor)
    repack(model)
