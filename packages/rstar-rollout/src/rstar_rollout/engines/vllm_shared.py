"""Weights through memory that the sender shares, for engines on the CPUs of the sender's machine.

Registered with vLLM under `SHARED_MEMORY_BACKEND`. An update is one or several blocks; of each the workers are told
where it is and which tensors lie in it, one after another. The sender may use the memory anew as soon as a block is
taken, so tensors are copied out of it: vLLM keeps those of a layer until the layer is complete.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import WeightTransferUpdateInfo
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

from rstar_rollout.engines.vllm_names import SHARED_MEMORY_BACKEND
from rstar_rollout.engines.vllm_transfer import NothingToAgree, WaitingForNothing

__all__ = ["SharedMemoryTransferEngine", "register_shared_memory_backend"]


@dataclass
class SharedMemoryUpdateInfo(WeightTransferUpdateInfo):
    """One block: ``path`` of the memory, as a file, and its tensors with the byte each begins at.

    Raises:
        ValueError: the lists differ in length.
    """

    path: str
    names: list[str] = field(default_factory=list)
    dtype_names: list[str] = field(default_factory=list)
    shapes: list[list[int]] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Check the lengths."""
        lengths = {len(self.names), len(self.dtype_names), len(self.shapes), len(self.offsets)}
        if len(lengths) > 1:
            raise ValueError(f"names, dtypes, shapes and offsets of one length each, not {sorted(lengths)}")


class SharedMemoryTransferEngine(WaitingForNothing[NothingToAgree, SharedMemoryUpdateInfo]):
    """The receiving side, in each worker."""

    init_info_cls = NothingToAgree
    update_info_cls = SharedMemoryUpdateInfo

    def init_transfer_engine(self, init_info: NothingToAgree) -> None:
        """Nothing to do."""

    def start_weight_update(self) -> None:
        """Make vLLM expect weights in checkpoint format, layer by layer."""
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: SharedMemoryUpdateInfo) -> None:
        """Load one block.

        Raises:
            OSError: the memory cannot be reached from here.
            ValueError: it is smaller than what should lie in it.
        """
        model: Any = self.model  # declared as a plain module, which has no loader
        model.load_weights(_tensors(update_info))

    def finish_weight_update(self) -> None:
        """Let vLLM finish the layers."""
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        """Nothing is held."""


def register_shared_memory_backend() -> None:
    """Makes the backend known to vLLM in this process; once is enough, more does no harm."""
    if SHARED_MEMORY_BACKEND not in WeightTransferEngineFactory._registry:
        engine: Any = SharedMemoryTransferEngine
        WeightTransferEngineFactory.register_engine(SHARED_MEMORY_BACKEND, engine)


def _tensors(block: SharedMemoryUpdateInfo) -> Iterator[tuple[str, torch.Tensor]]:
    with open(block.path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) as memory:
        for name, dtype_name, shape, offset in zip(
            block.names, block.dtype_names, block.shapes, block.offsets, strict=True
        ):
            dtype: torch.dtype = getattr(torch, dtype_name)
            count = math.prod(shape)
            # Private pages, which torch may take for writable; they are never written to.
            flat = torch.frombuffer(memory, dtype=dtype, count=count, offset=offset) if count else torch.empty(0)
            tensor = flat.to(dtype, copy=True).reshape(shape)
            del flat  # a view keeps the memory from being unmapped, also when the loader stops here
            yield name, tensor
