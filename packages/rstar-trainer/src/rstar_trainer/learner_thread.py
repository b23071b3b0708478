"""The thread that computes: everything that touches the learner runs in it, and the event loop stays free."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import torch
from transformers.utils import logging as transformers_logging

from rstar_model.lora import LoraSettings
from rstar_model.policy import Policy
from rstar_trainer.allocator import keep_freed_memory
from rstar_trainer.learner import Learner, TorchLearner
from rstar_trainer.recipe import Recipe
from rstar_trainer.seeds import derive_seed

__all__ = ["LearnerThread"]

Result = TypeVar("Result")


class LearnerThread:
    """A learner and its thread; an asynchronous context manager that loads the one and ends the other.

    Args:
        recipe: model, optimizer and engine settings.
        model_dir: Hugging Face folder of the initial policy.
    """

    def __init__(self, recipe: Recipe, model_dir: Path) -> None:
        self._recipe, self._model_dir = recipe, model_dir
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="learner")
        self._learner: Learner | None = None

    async def __aenter__(self) -> LearnerThread:
        self._learner = await self.compute(_load_learner, self._recipe, self._model_dir)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A computation under way cannot be interrupted; it is waited for, so that nothing writes after the end.
        self._executor.shutdown(wait=True, cancel_futures=True)

    @property
    def learner(self) -> Learner:
        """The learner. Its methods are called through `compute` only."""
        assert self._learner is not None, "entered"
        return self._learner

    async def compute(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Runs a function in the thread."""
        call = functools.partial(function, *arguments)
        return await asyncio.get_running_loop().run_in_executor(self._executor, call)


def _load_learner(recipe: Recipe, model_dir: Path) -> Learner:
    keep_freed_memory()
    # Its bars would be drawn over the run's own.
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
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
    return TorchLearner(policy, recipe.optimizer, recipe.engine.dtype)
