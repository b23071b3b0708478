"""What runs inside vLLM's workers beside vLLM: layouts that its own reload leaves behind.

On the CPU vLLM keeps a re-laid copy of a linear layer's weight for its matrix kernel. `reload_weights` makes these
copies anew for linear layers, but not for the output layer that shares its weight with the embedding: that one went on
computing with the old weights, and every log-probability after an update was slightly wrong.
"""

from __future__ import annotations

from typing import Any

__all__ = ["WORKER_EXTENSION", "LayoutRefresh"]

WORKER_EXTENSION = f"{__name__}.LayoutRefresh"
"""For vLLM's `worker_extension_cls`."""


class LayoutRefresh:
    """Mixed into vLLM's worker class, whose `model_runner` it uses."""

    model_runner: Any

    def refresh_output_layouts(self) -> int:
        """Makes the kernel's copy of each embedding that is also an output layer anew; returns how many there were."""
        from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

        refreshed = 0
        for module in self.model_runner.get_model().modules():
            # Only the CPU's dispatch sets the attribute, and it keeps the weight itself for these layers.
            if isinstance(module, VocabParallelEmbedding) and hasattr(module, "cpu_linear"):
                module.quant_method.process_weights_after_loading(module)
                refreshed += 1
        return refreshed
