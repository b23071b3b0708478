"""How fast an engine is: the time of a decode step and of prefill, from a GPU's figures or measured.

A decode step reads the weights once and the KV cache of every sequence in the batch, and computes one token for each:

    step seconds = a + b * sequences + c * context tokens

``a`` is weight bytes over memory bandwidth plus a fixed overhead, ``b`` the arithmetic of a token (2 operations per
parameter) plus what an engine does for a sequence, ``c`` the KV bytes of a token over bandwidth. Prefill is bound by
arithmetic: seconds per token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["Gpu", "ModelShape", "SpeedCurve", "engine_kv_tokens", "speed_from_hardware"]


@dataclass(frozen=True)
class SpeedCurve:
    """Seconds: ``a`` per step, ``b`` per sequence of a step, ``c`` per context token of a step; prefill per token."""

    a: float
    b: float
    c: float
    prefill: float

    def step_seconds(self, sequences: float, context: float) -> float:
        """Of one decode step."""
        return self.a + self.b * sequences + self.c * context

    def steps_seconds(self, steps: float, sequences: int, context: float) -> float:
        """Of several steps in which the context grows by ``sequences`` tokens a step."""
        growth = self.c * sequences / 2
        return steps * (self.step_seconds(sequences, context) + growth * steps)

    def steps_within(self, seconds: float, sequences: int, context: float) -> float:
        """Inverse of `steps_seconds`: how many steps, not rounded, are done in that time."""
        rate = self.step_seconds(sequences, context)
        growth = self.c * sequences / 2
        if growth * seconds < 1e-9 * rate * rate:
            return seconds / rate
        return (math.sqrt(rate * rate + 4 * growth * seconds) - rate) / (2 * growth)


@dataclass(frozen=True)
class ModelShape:
    """What of a model sets its speed: parameters, KV bytes of one token, bytes of one parameter."""

    parameters: float
    kv_bytes_per_token: int
    parameter_bytes: int = 2


@dataclass(frozen=True)
class Gpu:
    """Memory in bytes, bandwidth in bytes/s, dense 16-bit arithmetic in operations/s, and what of it is reached.

    ``overhead_seconds`` is what each step costs beside (launches, sampling, scheduling); ``reserved_bytes`` per GPU
    hold activations and libraries; ``memory_share`` is what an engine is given.
    """

    memory_bytes: float
    bandwidth: float
    operations: float
    bandwidth_share: float = 0.7
    operations_share: float = 0.45
    overhead_seconds: float = 1.5e-3
    memory_share: float = 0.9
    reserved_bytes: float = 8e9


def engine_kv_tokens(model: ModelShape, gpu: Gpu, tensor_parallel: int) -> int:
    """Tokens that the KV cache of one engine holds."""
    usable = tensor_parallel * (gpu.memory_bytes * gpu.memory_share - gpu.reserved_bytes)
    return int((usable - model.parameters * model.parameter_bytes) // model.kv_bytes_per_token)


def speed_from_hardware(
    model: ModelShape, gpu: Gpu, tensor_parallel: int, all_reduce_seconds: float = 0.0
) -> SpeedCurve:
    """The curve of an engine over ``tensor_parallel`` GPUs.

    ``all_reduce_seconds``: communication of a step, all layers together; none on one GPU.
    """
    bandwidth = gpu.bandwidth * gpu.bandwidth_share * tensor_parallel
    operations = gpu.operations * gpu.operations_share * tensor_parallel
    per_token = 2 * model.parameters / operations
    communication = all_reduce_seconds if tensor_parallel > 1 else 0.0
    return SpeedCurve(
        a=model.parameters * model.parameter_bytes / bandwidth + gpu.overhead_seconds + communication,
        b=per_token,
        c=model.kv_bytes_per_token / bandwidth,
        prefill=per_token,
    )
