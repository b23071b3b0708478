"""Names that this project gives vLLM, where both its workers and the process that starts them find them."""

from __future__ import annotations

__all__ = ["FOLDER_BACKEND", "SHARED_MEMORY_BACKEND", "WORKER_EXTENSION"]

FOLDER_BACKEND = "rstar_folder"
"""For vLLM's `weight_transfer_config`: the backend of `vllm_transfer.py`."""
SHARED_MEMORY_BACKEND = "rstar_shared_memory"
"""Likewise: that of `vllm_shared.py`."""
WORKER_EXTENSION = "rstar_rollout.engines.vllm_worker.WorkerExtension"
"""For vLLM's `worker_extension_cls`."""
