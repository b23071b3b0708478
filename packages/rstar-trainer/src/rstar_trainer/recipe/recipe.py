"""The whole recipe, and the checks that need more than one of its sections."""

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from rstar_trainer.recipe._base import Section
from rstar_trainer.recipe.learner_settings import LearnerSettings
from rstar_trainer.recipe.sections import (
    CheckpointSettings,
    DataSettings,
    EngineSettings,
    EvaluationSettings,
    ModelSettings,
    OptimizerSettings,
    ServicesSettings,
    SftSettings,
    ToolSettings,
)
from rstar_trainer.recipe.stages import Stage
from rstar_trainer.recipe.transfer_rules import transfer_problem


class Recipe(Section):
    """Everything that decides what a run does."""

    name: str = Field(min_length=1, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="name of the recipe")
    seed: int = Field(default=1, ge=0, lt=2**63, description="seed of every random choice of the run")
    run_dir: str = Field(
        default="runs/{name}-seed{seed}",
        min_length=1,
        description="run folder; {name} and {seed} are filled in",
    )
    model: ModelSettings = Field(default=ModelSettings(), description="what is trained")
    learner: LearnerSettings = Field(default=LearnerSettings(), description="where the learner computes")
    services: ServicesSettings = Field(default=ServicesSettings(), description="where the services are")
    engine: EngineSettings = Field(default=EngineSettings(), description="the generation engine")
    data: DataSettings = Field(default=DataSettings(), description="training and held-out problems")
    tool: ToolSettings = Field(default=ToolSettings(), description="limits of a tool call")
    sft: SftSettings = Field(default=SftSettings(), description="supervised fine-tuning")
    evaluation: EvaluationSettings = Field(default=EvaluationSettings(), description="held-out evaluation")
    checkpoint: CheckpointSettings = Field(default=CheckpointSettings(), description="checkpoints")
    optimizer: OptimizerSettings = Field(default=OptimizerSettings(), description="AdamW")
    stages: tuple[Stage, ...] = Field(default=(), description="RL stages, in order")

    @property
    def run_path(self) -> Path:
        """The run folder, with name and seed filled in."""
        return Path(self.run_dir.replace("{name}", self.name).replace("{seed}", str(self.seed)))

    @property
    def entries(self) -> tuple[str, ...]:
        """Names of the evaluations of the run, in order: base, sft (when enabled), then the stages."""
        return ("base", *(("sft",) if self.sft.enabled else ()), *(stage.name for stage in self.stages))

    def is_full_evaluation(self, entry: str) -> bool:
        """Whether `entry` is evaluated on all held-out problems rather than on the fixed subset."""
        return entry in self.evaluation.full or entry == self.entries[-1]

    def evaluation_problems(self, entry: str) -> int:
        """How many held-out problems `entry` is evaluated on (always the first ones)."""
        return self.evaluation.problems if self.is_full_evaluation(entry) else self.evaluation.subset

    @model_validator(mode="after")
    def _stages_have_own_names(self) -> Self:
        names = [stage.name for stage in self.stages]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f'stages: names should differ, not be "{name}" twice')
        return self

    @model_validator(mode="after")
    def _something_to_do(self) -> Self:
        if not self.stages and not self.sft.enabled:
            raise ValueError("stages: should hold at least one stage when sft.enabled is false")
        return self

    @model_validator(mode="after")
    def _adapters_in_one_process(self) -> Self:
        if self.learner.backend == "deepspeed" and (self.model.lora is not None or self.model.liger):
            raise ValueError('learner.backend: should be "torch" with model.lora or model.liger, not "deepspeed"')
        return self

    @model_validator(mode="after")
    def _weights_can_arrive(self) -> Self:
        problem = transfer_problem(self.engine, self.learner, self.services.rollout)
        if problem:
            raise ValueError(problem)
        return self

    @model_validator(mode="after")
    def _full_entries_exist(self) -> Self:
        for entry in self.evaluation.full:
            # "sft" may stay listed when SFT is switched off.
            if entry not in ("base", "sft", *self.entries):
                raise ValueError(f'evaluation.full: should be some of {", ".join(self.entries)}, not "{entry}"')
        return self

    @model_validator(mode="after")
    def _lengths_fit(self) -> Self:
        limits = {f"stages.{stage.name}": stage.max_response_tokens for stage in self.stages}
        limits["evaluation"] = self.evaluation.max_response_tokens
        for where, tokens in limits.items():
            if tokens >= self.engine.max_model_len:
                raise ValueError(
                    f"{where}.max_response_tokens: should be less than engine.max_model_len "
                    f"({self.engine.max_model_len}), so that a prompt fits, not {tokens}"
                )
        return self

    @model_validator(mode="after")
    def _enough_problems(self) -> Self:
        train = self.data.train.count
        for stage in self.stages:
            if 0 < train < stage.problems_under_way:
                raise ValueError(
                    f"stages.{stage.name}.problems_per_step: should be at most data.train.count ({train}), "
                    f"not {stage.problems_under_way}" + (" with partial.extra_problems" if stage.partial else "")
                )
        heldout = self.data.heldout.count
        if 0 < heldout < self.evaluation.problems:
            raise ValueError(
                f"evaluation.problems: should be at most data.heldout.count ({heldout}), not {self.evaluation.problems}"
            )
        return self
