"""DeepSpeed's configuration as it follows from a recipe. Pure: nothing here imports DeepSpeed."""

from __future__ import annotations

from typing import Any

from rstar_trainer.recipe import LearnerSettings, OptimizerSettings

__all__ = ["zero_config"]

_NEVER = 2**31 - 1


def zero_config(learner: LearnerSettings, optimizer: OptimizerSettings, *, on_gpu: bool) -> dict[str, Any]:
    """Configuration for `deepspeed.initialize` and `deepspeed.zero.Init`.

    DeepSpeed counts micro-batches; here every update has as many as its tokens need, so its own count stays 1 and the
    last backward pass of an update says that it is the last.

    Args:
        learner: stage, dtype, offload.
        optimizer: norm that gradients are clipped to.
        on_gpu: overlap communication with computation.
    """
    zero: dict[str, Any] = {
        "stage": learner.zero_stage,
        "contiguous_gradients": True,
        "overlap_comm": on_gpu and learner.zero_stage > 0,
    }
    if learner.cpu_offload:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": on_gpu}
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        # Without ZeRO the rank clips by itself: DeepSpeed would not tell the norm.
        "gradient_clipping": optimizer.max_grad_norm if learner.zero_stage else 0.0,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        # torch's AdamW works on offloaded state too, and needs no compiler.
        "zero_force_ds_cpu_optimizer": False,
        "bf16": {"enabled": learner.dtype == "bfloat16"},
        "data_types": {"grad_accum_dtype": "fp32"},
        "steps_per_print": _NEVER,
    }
