"""Weights on their way from the learner to an engine: a folder, its version and its checksum.

A checksum covers what an engine ends up with: names, dtypes, shapes and bytes of the tensors in the dtype that was
sent. Each parameter has its own, so that a single changed element is found and named.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from rstar_model.digests import parameter_digest
from rstar_model.policy import Policy, copy_tokenizer_files
from rstar_model.tensors import model_tensors
from rstar_protos.errors import UserInputError

__all__ = [
    "MANIFEST_NAME",
    "Canary",
    "WeightManifest",
    "combined_checksum",
    "manifest_from_json",
    "manifest_to_json",
    "model_tensors",
    "parameter_checksums",
    "read_manifest",
    "replace_folder",
    "state_checksum",
    "storage_dtype",
    "store_dtype",
    "tensor_checksum",
    "write_manifest",
    "write_weights",
]

MANIFEST_NAME = "rstar_weights.json"

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Canary:
    """A short text and what the sender's policy thinks of it, for an engine to compute again.

    ``log_probs`` has one natural logarithm, at temperature 1, for each of ``token_ids`` after the first.
    """

    token_ids: tuple[int, ...]
    log_probs: tuple[float, ...]


@dataclass(frozen=True)
class WeightManifest:
    """Which weights lie in a folder.

    ``version`` counts the learner's updates, 0 being what it started from. ``checksum`` is ``state_checksum`` of the
    tensors in ``dtype``, as stored; ``parameters`` has the checksum of each. ``digests`` has, for engines that check
    what they have loaded, the ``parameter_digest`` of each; empty where none was asked for.
    """

    version: int
    checksum: str
    path: Path
    dtype: str
    parameters: Mapping[str, str] = field(default_factory=dict, repr=False)
    digests: Mapping[str, str] = field(default_factory=dict, repr=False)
    canary: Canary | None = field(default=None, repr=False)


def tensor_checksum(tensor: torch.Tensor) -> str:
    """SHA-256 of a tensor's dtype, shape and bytes in row-major order."""
    data = tensor.detach().to("cpu").contiguous()
    digest = hashlib.sha256(f"{str(data.dtype).removeprefix('torch.')} {tuple(data.shape)}\n".encode())
    buffer: Any = data.reshape(-1).view(torch.uint8).numpy()
    digest.update(buffer)
    return digest.hexdigest()


def parameter_checksums(named_tensors: Iterable[tuple[str, torch.Tensor]]) -> dict[str, str]:
    """``tensor_checksum`` by name."""
    return {name: tensor_checksum(tensor) for name, tensor in named_tensors}


def state_checksum(
    named_tensors: Iterable[tuple[str, torch.Tensor]] | Mapping[str, torch.Tensor],
) -> str:
    """One SHA-256 over names, dtypes, shapes and bytes, whatever the order of the tensors."""
    pairs = named_tensors.items() if isinstance(named_tensors, Mapping) else named_tensors
    return combined_checksum(parameter_checksums(pairs))


def combined_checksum(checksums: Mapping[str, str]) -> str:
    """``state_checksum`` from the checksums of the tensors by name."""
    digest = hashlib.sha256()
    for name in sorted(checksums):
        digest.update(f"{name} {checksums[name]}\n".encode())
    return digest.hexdigest()


def storage_dtype(name: str) -> torch.dtype:
    """The dtype that weights are stored in, by its name.

    Raises:
        UserInputError: unknown.
    """
    if name not in _DTYPES:
        raise UserInputError("dtype", name, "one of " + ", ".join(_DTYPES))
    return _DTYPES[name]


def write_weights(
    policy: Policy,
    folder: str | Path,
    version: int,
    dtype: str = "float32",
    *,
    digests: bool = False,
    canary: Canary | None = None,
) -> WeightManifest:
    """Write a Hugging Face folder that an engine can load, with its manifest.

    The folder appears complete or not at all; an older one of the same name is replaced.

    Args:
        policy: whose weights are written; unchanged.
        folder: to write.
        version: of the weights.
        dtype: to store. Engines that compute in bfloat16 are sent bfloat16.
        digests: also compute ``parameter_digest`` of each parameter.
        canary: goes into the manifest.

    Raises:
        UserInputError: unknown dtype.
    """
    target = storage_dtype(dtype)
    folder = Path(folder).absolute()
    folder.parent.mkdir(parents=True, exist_ok=True)
    state = {name: value.to(target) for name, value in model_tensors(policy.model).items()}
    checksums = parameter_checksums(state.items())
    found = {name: parameter_digest(value) for name, value in state.items()} if digests else {}
    manifest = WeightManifest(version, combined_checksum(checksums), folder, dtype, checksums, found, canary)
    partial = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
    try:
        policy.model.save_pretrained(partial, state_dict=state)
        for path in partial.glob("*.safetensors"):
            path.chmod(0o644)  # written privately; an engine may run as another user
        store_dtype(partial / "config.json", dtype)
        copy_tokenizer_files(policy.source, partial)
        write_manifest(partial, manifest)
        replace_folder(partial, folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return manifest


def replace_folder(new: Path, folder: Path) -> None:
    """Put a complete folder in place of another of the same file system, or where none is."""
    if folder.exists():
        old = folder.with_name(f".{folder.name}.{uuid.uuid4().hex}")
        os.rename(folder, old)
        os.rename(new, folder)
        shutil.rmtree(old, ignore_errors=True)
    else:
        os.rename(new, folder)


def read_manifest(folder: str | Path) -> WeightManifest:
    """The manifest of a folder written by ``write_weights``.

    Raises:
        UserInputError: there is none, or it is damaged.
    """
    path = Path(folder) / MANIFEST_NAME
    try:
        return manifest_from_json(json.loads(path.read_text(encoding="utf-8")), Path(folder))
    except (OSError, ValueError) as error:
        raise UserInputError("weights folder", f"{folder}: {error}", "a folder written by write_weights") from error


def write_manifest(folder: Path, manifest: WeightManifest) -> None:
    """Write the manifest into the folder of the weights."""
    text = json.dumps(manifest_to_json(manifest), indent=1)
    (folder / MANIFEST_NAME).write_text(text, encoding="utf-8")


def manifest_to_json(manifest: WeightManifest) -> dict[str, Any]:
    """Everything but the folder, as JSON has it."""
    record: dict[str, Any] = {
        "version": manifest.version,
        "checksum": manifest.checksum,
        "dtype": manifest.dtype,
        "parameters": dict(manifest.parameters),
    }
    if manifest.digests:
        record["digests"] = dict(manifest.digests)
    if manifest.canary is not None:
        record["canary"] = {
            "token_ids": list(manifest.canary.token_ids),
            "log_probs": list(manifest.canary.log_probs),
        }
    return record


def manifest_from_json(record: Any, folder: Path) -> WeightManifest:
    """What ``manifest_to_json`` gave, for weights in a folder.

    Raises:
        ValueError: it is damaged.
    """
    try:
        return WeightManifest(
            int(record["version"]),
            str(record["checksum"]),
            folder,
            str(record["dtype"]),
            dict(record["parameters"]),
            dict(record.get("digests", {})),
            _read_canary(record.get("canary")),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a weight manifest: {error!r}") from error


def _read_canary(record: Any) -> Canary | None:
    if record is None:
        return None
    return Canary(tuple(map(int, record["token_ids"])), tuple(map(float, record["log_probs"])))


def store_dtype(path: Path, dtype: str) -> None:
    """Name the stored dtype in the configuration, so that engines on "auto" load it as it is."""
    config = json.loads(path.read_text(encoding="utf-8"))
    config["dtype"] = dtype
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
