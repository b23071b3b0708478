"""vLLM's worker with faults to order: a bit of the loaded weights turns, an update passes it by."""

from __future__ import annotations

from typing import Any

import torch
from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

from rstar_rollout.engines.vllm_digests import loaded_blocks
from rstar_rollout.engines.vllm_worker import WorkerExtension

_INTEGERS = {2: torch.int16, 4: torch.int32}


class FaultyWorker(WorkerExtension):
    """For `VllmSettings.worker_extension`."""

    weight_transfer_engine: Any

    def rstar_flip(self, layer_name: str, row: int, column: int) -> float:
        """Turns the lowest bit of one weight where the layer computes from; returns by how much that changed it."""
        layer = self.model_runner.get_model().get_submodule(layer_name)
        packed_away = layer.weight.numel() == 0
        if packed_away:
            # The kernel has the only copy, in a layout of its own: it is given a new one.
            weight = torch.cat([block for _, _, block in _blocks_of(layer, layer_name)]).contiguous()
            before, after = _flip(weight, row, column)
            layer.weight = torch.nn.Parameter(weight, requires_grad=False)
            dispatch_cpu_unquantized_gemm(layer, remove_weight=True)
        else:
            weight = layer.weight.data
            before, after = _flip(weight if weight.dim() == 2 else weight[None], row, column)
        return abs(after - before)

    def rstar_ignore_next_update(self) -> None:
        """What arrives next is thrown away, without a word."""
        engine = self.weight_transfer_engine
        receive = engine.receive_weights

        def ignore(update_info: object) -> None:
            engine.receive_weights = receive

        engine.receive_weights = ignore


def _blocks_of(layer: Any, name: str) -> list[Any]:
    model = torch.nn.Module()
    model.packed_modules_mapping = {name.rpartition(".")[2]: [str(n) for n in range(_parts(layer))]}
    model.add_module(name.rpartition(".")[2], layer)
    return list(loaded_blocks(model))


def _parts(layer: Any) -> int:
    sizes = getattr(layer, "output_sizes", None)
    return len(sizes) if sizes else 1


def _flip(weight: torch.Tensor, row: int, column: int) -> tuple[float, float]:
    before = float(weight[row, column])
    weight.view(_INTEGERS[weight.element_size()])[row, column] ^= 1
    return before, float(weight[row, column])
