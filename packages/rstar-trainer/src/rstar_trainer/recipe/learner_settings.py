"""The recipe's section on where the learner computes: this process, or DeepSpeed ranks under Ray."""

from typing import Literal, Self

from pydantic import Field, model_validator

from rstar_trainer.recipe._base import Section


class LearnerSettings(Section):
    """Where parameters and optimizer live."""

    backend: Literal["torch", "deepspeed"] = Field(
        default="torch", description='"torch": this process; "deepspeed": ranks with sharded state, as Ray actors'
    )
    ranks: int = Field(default=1, ge=1, description="DeepSpeed ranks; one GPU each where there are GPUs")
    zero_stage: int = Field(
        default=2,
        ge=0,
        le=3,
        description="ZeRO: what is sharded over the ranks; 0: nothing, 1: optimizer, 2: also gradients, "
        "3: also parameters",
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        default="float32",
        description="dtype parameters are held in, under DeepSpeed; initial weights are rounded to it, master weights "
        "are float32 either way",
    )
    sequence_parallel: int = Field(
        default=1,
        ge=1,
        description="neighbouring ranks that compute each sequence together (DeepSpeed-Ulysses), for sequences too "
        "long for one; divides the ranks and the model's attention heads",
    )
    cpu_offload: bool = Field(default=False, description="keep the optimizer's state in the memory of the host")
    cpus_per_rank: int = Field(default=1, ge=1, description="CPUs that Ray reserves for a rank")
    gpus_per_rank: float = Field(default=0, ge=0, le=1, description="GPUs that Ray reserves for a rank; 0: CPU ranks")
    ray_address: str = Field(
        default="local", min_length=1, description='"local": a Ray of its own on this machine; "auto"; or "host:port"'
    )
    patience_seconds: float = Field(
        default=1800.0, gt=0, description="longest wait for a rank, and for engines to take weights"
    )
    restarts: int = Field(
        default=3, ge=0, description="losses of a rank, without a step done in between, after which the run ends"
    )

    @model_validator(mode="after")
    def _only_with_deepspeed(self) -> Self:
        if self.backend == "torch" and self.ranks != 1:
            raise ValueError(f'backend = "deepspeed" with more than one rank, not "torch" with ranks = {self.ranks}')
        if self.ranks % self.sequence_parallel:
            raise ValueError(f"sequence_parallel that divides ranks ({self.ranks}), not {self.sequence_parallel}")
        if self.cpu_offload and self.zero_stage == 0:
            raise ValueError("zero_stage of at least 1 with cpu_offload, not 0")
        if self.backend == "deepspeed" and self.dtype == "bfloat16" and self.zero_stage == 0:
            raise ValueError(
                'zero_stage of at least 1 with dtype = "bfloat16", not 0: masters need an optimizer of ZeRO'
            )
        return self
