"""Blocks of shared memory, written by the sender and read as vLLM's workers read them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

import torch

from rstar_rollout.engines.vllm_shared import SharedMemoryUpdateInfo, _tensors
from rstar_trainer.backends.engine_transfer import ParameterSource
from rstar_trainer.backends.shared_memory_sender import SharedMemoryInitInfo, SharedMemorySender

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]

SHAPES = {"a": (3, 5), "b": (7,), "c": (40, 50), "d": (), "e": (0, 4), "f": (2, 2, 2)}


class Reader:
    """The service's side: takes what it is told of out of the memory, at once."""

    def __init__(self) -> None:
        self.found: dict[str, torch.Tensor] = {}
        self.blocks: list[list[str]] = []
        self.paths: set[str] = set()

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        assert init_info == {}

    def start_weight_update(self) -> None:
        self.found, self.blocks = {}, []

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.paths.add(update_info["path"])
        self.blocks.append(update_info["names"])
        self.found.update(_tensors(SharedMemoryUpdateInfo(**update_info)))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        pass


def sender(reader: Reader, tensors: dict[str, torch.Tensor], dtype: torch.dtype, block: int) -> SharedMemorySender:
    def parameters() -> Iterator[tuple[str, torch.Tensor]]:
        return iter(tensors.items())

    source = ParameterSource(parameters, [(n, tuple(t.shape)) for n, t in tensors.items()], dtype, digest=False)
    return SharedMemorySender.trainer_init(
        SharedMemoryInitInfo(rank=0, block_bytes=block), client=reader, source=source
    )


def made() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("block", [64, 512, 1 << 20])
def test_what_is_sent_arrives_bit_for_bit_in_every_update(dtype: torch.dtype, block: int) -> None:
    reader, tensors = Reader(), made()
    made_sender = sender(reader, tensors, dtype, block)
    for _ in range(2):
        made_sender.send_weights()
        assert reader.found.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert torch.equal(reader.found[name], tensor.to(dtype))
            assert reader.found[name].shape == tensor.shape
        tensors["a"] += 1.0


def test_no_more_is_shared_at_a_time_than_a_block_or_the_largest_parameter() -> None:
    reader = Reader()
    sender(reader, made(), torch.float32, 512).send_weights()
    assert reader.blocks == [["a", "b"], ["c"], ["d", "e", "f"]]


def test_tensors_that_are_not_contiguous_arrive_as_they_are() -> None:
    reader, matrix = Reader(), torch.arange(12.0).reshape(3, 4).T
    sender(reader, {"t": matrix}, torch.float32, 1 << 20).send_weights()
    assert torch.equal(reader.found["t"], matrix)


def test_nothing_is_left_of_the_memory() -> None:
    reader = Reader()
    sender(reader, made(), torch.float32, 512).send_weights()
    (path,) = reader.paths
    assert not Path(path).exists()
    assert not [name for name in os.listdir("/dev/shm") if "rstar-weights" in name]


def test_memory_that_is_smaller_than_told_is_refused() -> None:
    with open("/proc/self/exe", "rb") as file:
        told = SharedMemoryUpdateInfo(f"/proc/self/fd/{file.fileno()}", ["a"], ["float32"], [[1 << 40]], [0])
        with pytest.raises(ValueError, match="buffer"):
            dict(_tensors(told))
