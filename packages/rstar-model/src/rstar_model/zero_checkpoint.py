"""The checkpoint of a learner on DeepSpeed ranks as an ordinary Hugging Face folder.

The shards are put together by DeepSpeed's own converter, which knows its formats: the float32 masters that the
optimizer holds, one parameter at a time, whatever the number of ranks. It does not know the optimizer that DeepSpeed
uses for bfloat16 parameters in stage 1, whose masters are put together here. Without ZeRO (stage 0) one file has the
whole module.

The files are Python pickles: convert checkpoints of your own only.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import transformers

from rstar_model.weight_folder import WeightFolderWriter
from rstar_model.weights import WeightManifest
from rstar_protos.errors import UserInputError

__all__ = ["SHARDS", "convert_shards", "holds_shards"]

SHARDS = "shards"
"""Subfolder of a checkpoint with the files of all ranks."""

_TAG = "learner"
_FIRST_RANK = "zero_pp_rank_0_mp_rank_00_optim_states.pt"
_MODULE_FILE = "mp_rank_00_model_states.pt"
# The learner's module holds the model under this name.
_PREFIX = "model."


def holds_shards(folder: Path) -> bool:
    """Whether a checkpoint was written by DeepSpeed ranks."""
    return (folder / SHARDS / _TAG).is_dir()


def convert_shards(folder: Path, target: Path, base: Path, dtype: str) -> WeightManifest:
    """Writes the policy as a Hugging Face folder with a weight manifest of version 0.

    Args:
        folder: the checkpoint.
        target: to write.
        base: Hugging Face folder of the same model, for configuration, tokenizer and the names of the parameters.
        dtype: to store.

    Raises:
        UserInputError: DeepSpeed is not installed, files of a rank are missing or damaged, or they are those of another
            model.
    """
    config, expected = _parameters_of(base)
    found = _whole_parameters(folder / SHARDS)
    missing = sorted(expected.keys() - found.keys())
    if missing:
        raise _unusable(folder, f"{missing[0]} is missing", base)
    with WeightFolderWriter(target, 0, dtype, config, base) as writer:
        for name, shape in expected.items():
            if tuple(found[name].shape) != shape:
                raise _unusable(folder, f"{name} has shape {tuple(found[name].shape)} instead of {shape}", base)
            writer.add(name, found[name].contiguous())  # only here are the pieces of a parameter put together
        return writer.finish()


def _parameters_of(base: Path) -> tuple[Any, dict[str, tuple[int, ...]]]:
    """Configuration of a model, and shapes of its parameters by name, tied ones once."""
    try:
        config = transformers.AutoConfig.from_pretrained(base)
        with torch.device("meta"):
            model = transformers.AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]  # untyped there
    except (OSError, ValueError) as error:
        raise UserInputError("--base", str(base), f"a Hugging Face model folder ({_first_line(error)})") from error
    return config, {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def _whole_parameters(shards: Path) -> Mapping[str, Any]:
    """By name in the model, tensors, or what makes one when its `contiguous` is called."""
    try:
        with _quiet():
            if (shards / _TAG / f"bf16_{_FIRST_RANK}").is_file() and (shards / _TAG / _MODULE_FILE).is_file():
                state = _bfloat16_masters(shards / _TAG)
            elif any((shards / _TAG).glob("*_optim_states.pt")):
                state = _deepspeed_converter()(str(shards), _TAG, lazy_mode=True)
            else:
                state = torch.load(shards / _TAG / _MODULE_FILE, map_location="cpu", weights_only=False)["module"]
    except UserInputError:
        raise
    except Exception as error:  # unpickling, missing files and missing ranks each fail in their own way
        wanted = "the shards of all ranks, as they were written"
        raise UserInputError("checkpoint", f"{shards}: {_first_line(error)}", wanted) from error
    return {name.removeprefix(_PREFIX): tensor for name, tensor in state.items()}


def _bfloat16_masters(folder: Path) -> dict[str, torch.Tensor]:
    """Of DeepSpeed's `BF16_Optimizer`: each group of parameters one after another in a vector that ranks share out.

    Raises:
        ValueError: files of a rank are missing.
    """
    _deepspeed_converter()  # the files hold objects of its classes
    groups = torch.load(folder / _MODULE_FILE, map_location="cpu", weights_only=False)["param_shapes"]
    optimizers: list[dict[str, Any]] = []
    while (path := folder / f"bf16_zero_pp_rank_{len(optimizers)}_mp_rank_00_optim_states.pt").is_file():
        optimizers.append(torch.load(path, map_location="cpu", weights_only=False, mmap=True)["optimizer_state_dict"])
    ranks = optimizers[0]["partition_count"]
    ranks = max(ranks) if isinstance(ranks, list) else ranks
    if len(optimizers) != ranks:
        raise ValueError(f"files of {len(optimizers)} of {ranks} ranks")
    found = {}
    for number, shapes in enumerate(groups):
        flat = torch.cat([optimizer["single_partition_of_fp32_groups"][number] for optimizer in optimizers])
        start = 0
        for name, shape in shapes.items():
            found[name] = flat[start : start + shape.numel()].view(shape)
            start += shape.numel()
    return found


def _deepspeed_converter() -> Any:
    """DeepSpeed's own.

    Raises:
        UserInputError: it is not installed.
    """
    # It looks for an accelerator when imported; here none is used.
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    try:
        from deepspeed.utils.zero_to_fp32 import (  # type: ignore[import-untyped]  # ships no types
            get_fp32_state_dict_from_zero_checkpoint,
        )
    except ImportError as error:
        wanted = "an installed deepspeed, whose shards the checkpoint is made of (pip install deepspeed)"
        raise UserInputError("package", f"{error.name} not installed", wanted) from error
    return get_fp32_state_dict_from_zero_checkpoint


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """DeepSpeed tells on both streams what it does; the command's own line is all that is printed."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        yield


def _unusable(folder: Path, reason: str, base: Path) -> UserInputError:
    return UserInputError("checkpoint", f"{folder}: {reason}", f"a checkpoint of the model in {base}")


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__
