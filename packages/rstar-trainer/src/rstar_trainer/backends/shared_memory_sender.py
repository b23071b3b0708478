"""The sending side of `rstar_rollout.engines.vllm_shared`: weights through memory that engines of this machine map.

The memory is a file without a name, reached through this process's descriptors: it takes no disk, no part of the size
that /dev/shm is given, and is gone with the process however that ends.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar, Self

import torch
from vllm.distributed.weight_transfer.base import (
    TrainerInitInfo,
    TrainerWeightTransferEngine,
    VLLMWeightSyncClient,
    WeightSource,
)

from rstar_trainer.weight_target import BACKENDS

__all__ = ["SharedMemoryInitInfo", "SharedMemorySender"]

_BLOCK_BYTES = 256 * 2**20
_ALIGNMENT = 64


@dataclass
class SharedMemoryInitInfo(TrainerInitInfo):
    """``block_bytes`` are shared at a time, or the largest parameter if that is larger."""

    backend: ClassVar[str] = BACKENDS["shared_memory"]

    block_bytes: int = _BLOCK_BYTES


class SharedMemorySender(TrainerWeightTransferEngine[SharedMemoryInitInfo]):
    """vLLM's trainer side; made by `trainer_init`, on every rank. Rank 0 sends, the others only gather."""

    init_info_cls = SharedMemoryInitInfo

    def __init__(
        self, *, client: VLLMWeightSyncClient, source: WeightSource, is_sender: bool, block_bytes: int
    ) -> None:
        super().__init__(client=client, source=source, is_sender=is_sender)
        self._block_bytes = block_bytes

    @classmethod
    def trainer_init(
        cls, init_info: SharedMemoryInitInfo, *, client: VLLMWeightSyncClient, source: WeightSource | None = None
    ) -> Self:
        """A sender whose engines know of it."""
        assert source is not None, "there is nothing to send"
        if init_info.is_sender:
            client.init_weight_transfer_engine({})
        return cls(client=client, source=source, is_sender=init_info.is_sender, block_bytes=init_info.block_bytes)

    def send_weights(self) -> None:
        """All parameters, block by block; a block is filled again when every worker has taken it."""
        assert self.source is not None, "checked by trainer_init"
        if not self.is_sender:
            for _ in self.source:
                pass
            return
        self.client.start_weight_update()
        with _Block(self._block_bytes) as block:
            for name, tensor in self.source:
                if not block.has_room(tensor):
                    self.client.update_weights(block.take())
                block.add(name, tensor)
            if block.filled:
                self.client.update_weights(block.take())
        self.client.finish_weight_update()


class _Block:
    """Shared memory, and which tensors lie in it; a context manager that frees it."""

    def __init__(self, size: int) -> None:
        self._descriptor = os.memfd_create("rstar-weights", os.MFD_CLOEXEC)
        self._memory: mmap.mmap | None = None
        self._size, self._end = size, 0
        self._contents: list[tuple[str, torch.Tensor, int]] = []

    def __enter__(self) -> _Block:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._memory is not None:
                self._memory.close()
        finally:
            os.close(self._descriptor)

    @property
    def filled(self) -> bool:
        """There is something in it."""
        return bool(self._contents)

    def has_room(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor fits behind the others; an empty block takes any."""
        return not self.filled or self._end + tensor.nbytes <= self._size

    def add(self, name: str, tensor: torch.Tensor) -> None:
        """Copies a tensor, from any device."""
        offset, self._end = self._end, -(-(self._end + tensor.nbytes) // _ALIGNMENT) * _ALIGNMENT
        memory = self._grown(self._end)
        if tensor.nbytes:
            place = torch.frombuffer(memory, dtype=torch.uint8, count=tensor.nbytes, offset=offset)
            try:
                place.copy_(tensor.detach().contiguous().reshape(-1).view(torch.uint8))
            finally:
                del place  # a view keeps the memory from being unmapped
        self._contents.append((name, torch.empty(tensor.shape, dtype=tensor.dtype, device="meta"), offset))

    def take(self) -> dict[str, Any]:
        """What workers are told of it; from now on it counts as empty."""
        contents, self._contents, self._end = self._contents, [], 0
        return {
            "path": f"/proc/{os.getpid()}/fd/{self._descriptor}",
            "names": [name for name, _, _ in contents],
            "dtype_names": [str(tensor.dtype).removeprefix("torch.") for _, tensor, _ in contents],
            "shapes": [list(tensor.shape) for _, tensor, _ in contents],
            "offsets": [offset for _, _, offset in contents],
        }

    def _grown(self, needed: int) -> mmap.mmap:
        if self._memory is None or len(self._memory) < needed:
            if self._memory is not None:
                self._memory.close()
            os.ftruncate(self._descriptor, max(needed, min(self._size, 2 * needed), mmap.PAGESIZE))
            self._memory = mmap.mmap(self._descriptor, 0)
        return self._memory
