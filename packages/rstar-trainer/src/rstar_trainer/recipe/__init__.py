"""The recipe: everything that decides what a run does, as frozen pydantic models read from TOML.

`load_recipe("quickstart")` or `load_recipe("my.toml", ["seed=2", "stages.rl-1.steps=4"])` gives a
checked `Recipe`. Nothing here imports torch, so that `plan` and `--help` stay fast.
"""

from rstar_trainer.recipe.learner_settings import LearnerSettings
from rstar_trainer.recipe.loading import built_in_recipes, load_recipe, recipe_from_mapping
from rstar_trainer.recipe.recipe import Recipe
from rstar_trainer.recipe.sections import (
    CheckpointSettings,
    DataSettings,
    DataSource,
    EngineSettings,
    EvaluationSettings,
    LoraSection,
    ModelSettings,
    OptimizerSettings,
    ServiceEndpoint,
    ServicesSettings,
    SftSettings,
    ToolSettings,
)
from rstar_trainer.recipe.stages import HardFilterSettings, LossSettings, PartialSettings, RocSettings, Stage

__all__ = [
    "CheckpointSettings",
    "DataSettings",
    "DataSource",
    "EngineSettings",
    "EvaluationSettings",
    "HardFilterSettings",
    "LearnerSettings",
    "LoraSection",
    "LossSettings",
    "ModelSettings",
    "OptimizerSettings",
    "PartialSettings",
    "Recipe",
    "RocSettings",
    "ServiceEndpoint",
    "ServicesSettings",
    "SftSettings",
    "Stage",
    "ToolSettings",
    "built_in_recipes",
    "load_recipe",
    "recipe_from_mapping",
]
