"""Weights by files through vLLM's weight-transfer API, for machines where its own backends have no GPU to work with.

Registered with vLLM under `FOLDER_BACKEND`: an update is one Hugging Face folder that all workers can read. Its files
are mapped, not read, and handed to the model one tensor at a time, so that a worker needs memory for one layer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import safe_open
from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from rstar_rollout.engines.vllm_names import FOLDER_BACKEND

__all__ = ["FolderTransferEngine", "NothingToAgree", "WaitingForNothing", "register_folder_backend"]

InitInfo = TypeVar("InitInfo", bound=WeightTransferInitInfo)
UpdateInfo = TypeVar("UpdateInfo", bound=WeightTransferUpdateInfo)


@dataclass
class NothingToAgree(WeightTransferInitInfo):
    """Nothing has to be set up before the first update."""


class WaitingForNothing(WeightTransferEngine[InitInfo, UpdateInfo]):
    """A receiver whose weights have arrived when `receive_weights` returns."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Receive. The inherited method waits for an accelerator, and fails where there is none."""
        self.receive_weights(self.parse_update_info(update_info))
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()


@dataclass
class FolderUpdateInfo(WeightTransferUpdateInfo):
    """``path`` of the folder with safetensors files."""

    path: str


class FolderTransferEngine(WaitingForNothing[NothingToAgree, FolderUpdateInfo]):
    """The receiving side, in each worker."""

    init_info_cls = NothingToAgree
    update_info_cls = FolderUpdateInfo

    def init_transfer_engine(self, init_info: NothingToAgree) -> None:
        """Nothing to do."""

    def start_weight_update(self) -> None:
        """Make vLLM expect weights in checkpoint format, layer by layer."""
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: FolderUpdateInfo) -> None:
        """Load the folder.

        Raises:
            FileNotFoundError: it holds no safetensors files.
        """
        model: Any = self.model  # declared as a plain module, which has no loader
        model.load_weights(_tensors(Path(update_info.path)))

    def finish_weight_update(self) -> None:
        """Let vLLM finish the layers."""
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        """Nothing is held."""


def register_folder_backend() -> None:
    """Makes the backend known to vLLM in this process; once is enough, more does no harm."""
    if FOLDER_BACKEND not in WeightTransferEngineFactory._registry:
        engine: Any = FolderTransferEngine
        WeightTransferEngineFactory.register_engine(FOLDER_BACKEND, engine)


def _tensors(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise FileNotFoundError(f"no safetensors files in {folder}")
    for path in paths:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                yield name, file.get_tensor(name)
