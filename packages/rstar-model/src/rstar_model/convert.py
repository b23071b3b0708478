"""Other forms of a policy into an ordinary Hugging Face folder.

Understood are: a Hugging Face folder (to change its dtype), a GGUF file of a Llama-type model, and a trainer's
checkpoint: a folder with ``learner.pt`` that holds ``Policy.state_dict``, or with the shards of DeepSpeed ranks
(zero_checkpoint.py). A checkpoint repeats neither configuration nor tokenizer, and one of adapters not the weights they
adapt: all that comes from the folder the run started from.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import torch

from rstar_model.gguf_model import convert_gguf
from rstar_model.lora import LoraSettings
from rstar_model.policy import Policy
from rstar_model.weights import WeightManifest, write_weights
from rstar_model.zero_checkpoint import SHARDS, convert_shards, holds_shards
from rstar_protos.errors import UserInputError

__all__ = ["CHECKPOINT_FILE", "convert"]

CHECKPOINT_FILE = "learner.pt"


def convert(
    source: str | Path, target: str | Path, *, base: str | Path | None = None, dtype: str = "float32"
) -> WeightManifest:
    """Write the policy in ``source`` as a Hugging Face folder with a weight manifest of version 0.

    Args:
        source: what to convert.
        target: folder to write; must not exist.
        base: Hugging Face folder of the same model, for a checkpoint.
        dtype: to store.

    Raises:
        UserInputError: ``source`` is none of the forms, the base is missing or another model, or the target exists.
    """
    source, target = Path(source), Path(target)
    if target.exists():
        raise UserInputError("target", str(target), "a folder that does not exist yet")
    if source.suffix == ".gguf" and source.is_file():
        target.absolute().parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.absolute().parent))
        try:
            convert_gguf(source, scratch)
            return write_weights(Policy.load(scratch), target, 0, dtype)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    sharded = holds_shards(source)
    if sharded or (source / CHECKPOINT_FILE).is_file():
        if base is None:
            raise UserInputError("--base", "none", "the model folder that the checkpoint's run started from")
        if sharded:
            return convert_shards(source, target, Path(base), dtype)
        return write_weights(_from_checkpoint(source, Path(base)), target, 0, dtype)
    if (source / "config.json").is_file():
        return write_weights(Policy.load(source), target, 0, dtype)
    raise UserInputError(
        "source",
        str(source),
        f"a Hugging Face folder, a checkpoint folder with {CHECKPOINT_FILE} or {SHARDS}, or a .gguf file",
    )


def _from_checkpoint(folder: Path, base: Path) -> Policy:
    try:
        state = torch.load(folder / CHECKPOINT_FILE, map_location="cpu", weights_only=True, mmap=True)
        lora = state.get("lora")
        policy = Policy.load(base, lora=None if lora is None else LoraSettings.from_dict(lora))
        policy.load_state_dict(state)
    except UserInputError:
        raise
    except Exception as error:  # unpickling, missing keys and shapes each fail in their own way
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserInputError("checkpoint", f"{folder}: {reason}", f"a checkpoint of the model in {base}") from error
    return policy
