"""The learner that a recipe asks for."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers.utils import logging as transformers_logging

from rstar_model.chat_format import ChatFormat
from rstar_model.lora import LoraSettings
from rstar_model.policy import Policy
from rstar_model.tokenizer import load_tokenizer
from rstar_protos.errors import UserInputError
from rstar_trainer.allocator import keep_freed_memory
from rstar_trainer.canary import canary_ids
from rstar_trainer.learner import Learner, TorchLearner
from rstar_trainer.recipe import Recipe
from rstar_trainer.seeds import derive_seed

__all__ = ["load_learner"]


def load_learner(recipe: Recipe, model_dir: Path) -> Learner:
    """Loads the initial policy into a learner.

    Args:
        recipe: says which.
        model_dir: Hugging Face folder of the initial policy.

    Raises:
        UserInputError: the folder holds no model, or what the backend needs is not there.
        LearnerLostError: a rank did not start.
    """
    # Its bars would be drawn over the run's own.
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    # Only vLLM is asked what it has loaded; the other engine compares what it reads with what was written.
    checked = recipe.engine.type == "vllm"
    canary = canary_ids(ChatFormat.load(recipe.model.chat_format), load_tokenizer(model_dir)) if checked else ()
    if recipe.learner.backend == "deepspeed":
        return _zero_learner(recipe, model_dir, canary)
    keep_freed_memory()
    torch.manual_seed(derive_seed(recipe.seed, "torch"))
    if recipe.model.threads:
        torch.set_num_threads(recipe.model.threads)
    policy = Policy.load(
        model_dir,
        dtype="float32",
        autocast=recipe.model.autocast,
        gradient_checkpointing=recipe.model.gradient_checkpointing,
        lora=None if recipe.model.lora is None else LoraSettings.from_dict(recipe.model.lora.model_dump()),
        liger=recipe.model.liger,
        device="cuda" if torch.cuda.is_available() else "cpu",
    )
    return TorchLearner(policy, recipe.optimizer, recipe.engine.dtype, canary)


def _zero_learner(recipe: Recipe, model_dir: Path, canary: tuple[int, ...]) -> Learner:
    try:
        from rstar_trainer.backends.zero_learner import ZeroLearner
        from rstar_trainer.backends.zero_rank import RankSettings
    except ImportError as error:
        missing = "learner.backend", "deepspeed", f"an installed rstar-trainer[deepspeed,ray] ({error})"
        raise UserInputError(*missing) from error
    return ZeroLearner(
        RankSettings(
            model_dir.absolute(),
            recipe.model,
            recipe.optimizer,
            recipe.learner,
            recipe.engine.dtype,
            derive_seed(recipe.seed, "torch"),
            canary,
        )
    )
