"""A Hugging Face folder written parameter by parameter: never more than one of its files is in memory.

For learners whose parameters lie on several ranks. Parameters have the names of the model in memory, which are those of
the checkpoint for dense models such as Llama and Qwen.
"""

from __future__ import annotations

import json
import shutil
import uuid
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from safetensors.torch import save_file

from rstar_model.digests import parameter_digest
from rstar_model.policy import copy_tokenizer_files
from rstar_model.weights import (
    Canary,
    WeightManifest,
    combined_checksum,
    replace_folder,
    storage_dtype,
    store_dtype,
    tensor_checksum,
    write_manifest,
)

__all__ = ["WeightFolderWriter"]

_FILE_BYTES = 1 << 30


class WeightFolderWriter:
    """Collects parameters, writes a file whenever enough have come together; a context manager.

    The folder appears complete, by `finish`, or not at all; an older one of the same name is replaced.

    Args:
        folder: to write.
        version: of the weights.
        dtype: to store.
        config: transformers configuration of the model.
        source: folder that tokenizer files are copied from, or None.
        file_bytes: a file is written when it has reached this size.
        digests: also compute `parameter_digest` of each parameter, for engines that check what they have loaded.

    Raises:
        UserInputError: unknown dtype.
    """

    def __init__(
        self,
        folder: str | Path,
        version: int,
        dtype: str,
        config: Any,
        source: Path | None,
        *,
        file_bytes: int = _FILE_BYTES,
        digests: bool = False,
    ) -> None:
        self._folder = Path(folder).absolute()
        self._version, self._dtype, self._torch_dtype = version, dtype, storage_dtype(dtype)
        self._config, self._source = config, source
        self._file_bytes, self._with_digests = file_bytes, digests
        self._partial = self._folder.with_name(f".{self._folder.name}.{uuid.uuid4().hex}")
        self._partial.mkdir(parents=True)
        self._waiting: dict[str, torch.Tensor] = {}
        self._files: list[tuple[Path, list[str]]] = []
        self._bytes = 0
        self._checksums: dict[str, str] = {}
        self._digests: dict[str, str] = {}

    def __enter__(self) -> WeightFolderWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Takes over a copy of a whole parameter.

        Raises:
            ValueError: there is one of that name already.
        """
        if name in self._checksums:
            raise ValueError(f"{name} was added before")
        value = torch.empty(tensor.shape, dtype=self._torch_dtype)
        value.copy_(tensor.detach())
        self._checksums[name] = tensor_checksum(value)
        if self._with_digests:
            self._digests[name] = parameter_digest(value)
        self._waiting[name] = value
        if sum(item.nbytes for item in self._waiting.values()) >= self._file_bytes:
            self._write_file()

    def finish(self, canary: Canary | None = None, *, with_manifest: bool = True) -> WeightManifest:
        """Writes what is left and puts the folder in place.

        Args:
            canary: goes into the manifest.
            with_manifest: write the manifest into the folder, for engines; an exported model has none.
        """
        if self._waiting or not self._files:
            self._write_file()
        self._name_files()
        self._config.save_pretrained(self._partial)
        store_dtype(self._partial / "config.json", self._dtype)
        copy_tokenizer_files(self._source, self._partial)
        manifest = WeightManifest(
            self._version,
            combined_checksum(self._checksums),
            self._folder,
            self._dtype,
            dict(self._checksums),
            dict(self._digests),
            canary,
        )
        if with_manifest:
            write_manifest(self._partial, manifest)
        replace_folder(self._partial, self._folder)
        return manifest

    def close(self) -> None:
        """Removes what was written unless the folder is finished."""
        shutil.rmtree(self._partial, ignore_errors=True)

    def _write_file(self) -> None:
        path = self._partial / f"part-{len(self._files) + 1:05d}.safetensors"
        save_file(self._waiting, path, metadata={"format": "pt"})
        path.chmod(0o644)  # an engine may run as another user
        self._bytes += sum(item.nbytes for item in self._waiting.values())
        self._files.append((path, list(self._waiting)))
        self._waiting = {}

    def _name_files(self) -> None:
        """The names that readers of such folders look for, which tell how many files there are."""
        count = len(self._files)
        if count == 1:
            self._files[0][0].rename(self._partial / "model.safetensors")
            return
        index: dict[str, str] = {}
        for number, (path, names) in enumerate(self._files, start=1):
            final = path.with_name(f"model-{number:05d}-of-{count:05d}.safetensors")
            path.rename(final)
            index.update(dict.fromkeys(names, final.name))
        record = {"metadata": {"total_size": self._bytes}, "weight_map": index}
        path = self._partial / "model.safetensors.index.json"
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
