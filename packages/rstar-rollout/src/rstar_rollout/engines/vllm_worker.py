"""What runs inside vLLM's workers beside vLLM: a way to load folders, weight versions, and digests of what is loaded.

Layouts that vLLM's own reload leaves behind are made anew here as well. On the CPU it keeps a re-laid copy of a linear
layer's weight for its matrix kernel, and its reload makes these copies anew for linear layers, but not for the output
layer that shares its weight with the embedding: that one would go on computing with the old weights.
"""

from __future__ import annotations

from typing import Any

from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

from rstar_rollout.engines.vllm_digests import loaded_pieces
from rstar_rollout.engines.vllm_shared import register_shared_memory_backend
from rstar_rollout.engines.vllm_transfer import register_folder_backend

__all__ = ["WorkerExtension"]

# Imported by the worker before it loads the model and asks for its transfer backend.
register_folder_backend()
register_shared_memory_backend()


class WorkerExtension:
    """Mixed into vLLM's worker class, whose `model_runner` it uses. Methods are called by `collective_rpc`."""

    model_runner: Any
    rstar_version = 0

    def rstar_finish(self, version: int) -> int:
        """After new weights: makes layouts anew that vLLM left behind, and notes the version.

        Returns:
            How many layouts there were.
        """
        refreshed = 0
        for module in self.model_runner.get_model().modules():
            # Only the CPU's dispatch sets the attribute, and it keeps the weight itself for these layers.
            if isinstance(module, VocabParallelEmbedding) and hasattr(module, "cpu_linear"):
                module.quant_method.process_weights_after_loading(module)
                refreshed += 1
        self.rstar_version = version
        return refreshed

    def rstar_loaded(self) -> tuple[int, list[tuple[str, str, list[int], list[int], str]]]:
        """The version that was noted here, and `DigestPiece`s of all that lies in this worker's memory, as tuples."""
        pieces = loaded_pieces(self.model_runner.get_model())
        # As text: the messages between vLLM's processes hold no integers of 64 bits without a sign.
        return self.rstar_version, [(p.name, p.dtype, list(p.offsets), list(p.shape), str(p.value)) for p in pieces]
