"""The thread that computes: everything that touches the learner runs in it, and the event loop stays free."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from rstar_trainer.learner import Learner
from rstar_trainer.learner_loading import load_learner
from rstar_trainer.recipe import Recipe

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
        self._learner = await self.compute(load_learner, self._recipe, self._model_dir)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Work of other processes under way is ended by it.
        if self._learner is not None:
            self._learner.close()
        # A computation in this one cannot be interrupted; it is waited for, so that nothing writes after the end.
        self._executor.shutdown(wait=True, cancel_futures=True)

    async def replace(self) -> None:
        """Loads another learner in the place of one that is lost, with the initial policy."""
        lost, self._learner = self._learner, None
        if lost is not None:
            await self.compute(lost.close)
        self._learner = await self.compute(load_learner, self._recipe, self._model_dir)

    @property
    def learner(self) -> Learner:
        """The learner. Its methods are called through `compute` only."""
        assert self._learner is not None, "entered"
        return self._learner

    async def compute(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Runs a function in the thread."""
        call = functools.partial(function, *arguments)
        return await asyncio.get_running_loop().run_in_executor(self._executor, call)
