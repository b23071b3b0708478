"""Memory of one DeepSpeed rank, from the shape of the model and the recipe's learner section.

With P parameters over N ranks (ZeRO, Rajbhandari et al. 2020, section 3, with float32 gradients): parameters take P
times their size, P / N in stage 3; gradients 4 P bytes, 4 P / N from stage 2 on; AdamW's two moments 8 P bytes, from
stage 1 on 12 P / N, because each rank has a float32 master of its part, also beside float32 parameters.
"""

from __future__ import annotations

from dataclasses import dataclass

from rstar_trainer.model_shape import ModelShape
from rstar_trainer.recipe import LearnerSettings

__all__ = ["RankMemory", "rank_memory"]

_BYTES = {"bfloat16": 2, "float32": 4}
_GRADIENT, _MOMENTS, _MASTER = 4, 8, 4

# DeepSpeed's default: gradients are reduced in buckets of so many elements, two of them when that overlaps.
_BUCKET_ELEMENTS = 500_000_000


@dataclass(frozen=True)
class RankMemory:
    """Bytes that one rank needs, where it computes ("device": its GPU, or the machine's memory) and on the host."""

    ranks: int
    zero_stage: int
    parameters: int
    gathered: int
    """Stage 3: whole copies of the parameters in use, the vocabulary's and those of two layers."""
    gradients: int
    reduce_buckets: int
    """From stage 1 on; at most the gradients of all parameters."""
    optimizer: int
    """Moments and masters; 0 when they are on the host."""
    activations: int
    """Of a micro-batch, estimated."""
    logits: int
    """One chunk of positions x vocabulary."""
    host: int
    """With offload: moments, masters, and the gradients that they are updated with."""

    @property
    def device(self) -> int:
        """All of it but the host's part."""
        return (
            self.parameters
            + self.gathered
            + self.gradients
            + self.reduce_buckets
            + self.optimizer
            + self.activations
            + self.logits
        )


def rank_memory(learner: LearnerSettings, shape: ModelShape, *, activations: int, logits: int) -> RankMemory:
    """What one rank needs.

    Args:
        learner: ranks, stage, dtype, offload.
        shape: of the model.
        activations: bytes of a micro-batch's activations.
        logits: bytes of one chunk of logits.
    """
    stage, size, count = learner.zero_stage, _BYTES[learner.dtype], shape.parameters
    part = -(-count // learner.ranks)
    per_layer = max(0, count - shape.vocabulary * shape.hidden) // shape.layers
    gathered = min(count, shape.vocabulary * shape.hidden + 2 * per_layer)
    optimizer = part * (_MOMENTS + _MASTER) if stage else count * _MOMENTS
    gradients = (part if stage >= 2 else count) * _GRADIENT
    buckets = min(count, _BUCKET_ELEMENTS) * size * (2 if learner.gpus_per_rank else 1)
    return RankMemory(
        ranks=learner.ranks,
        zero_stage=stage,
        parameters=(part if stage == 3 else count) * size,
        gathered=gathered * size if stage == 3 else 0,
        gradients=0 if learner.cpu_offload and stage >= 2 else gradients,
        reduce_buckets=buckets if stage else 0,
        optimizer=0 if learner.cpu_offload else optimizer,
        activations=activations,
        logits=logits,
        host=optimizer + part * _GRADIENT if learner.cpu_offload else 0,
    )
