"""Making an interpreter cheap to fork: all is imported and exercised, and children write to little of it."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rstar_sandbox import hot
from rstar_sandbox._memory import collapse
from rstar_sandbox.rehearsal import rehearse
from rstar_sandbox.warmup import warm_up

__all__ = ["foreign_fork_hooks", "make_forkable"]

_foreign_hooks: set[str] = set()


def make_forkable(scientific: Sequence[str]) -> list[str]:
    """Warms the interpreter up and settles its memory; the caller forks from now on.

    Args:
        scientific: modules to import beside the standard library.

    Returns:
        Those of them that are warm.
    """
    with _hooks_noticed():
        warmed = warm_up(scientific)
        rehearse(warmed)
    gc.collect()
    hot.make_immortal()
    # A collection in a child would else look at, and so write to, every object.
    gc.freeze()
    collapse()
    return warmed


def foreign_fork_hooks() -> bool:
    """Whether a module that is not of the standard library wants to know of forks."""
    return bool(_foreign_hooks)


@contextlib.contextmanager
def _hooks_noticed() -> Iterator[None]:
    register = os.register_at_fork

    def noticed(**hooks: Callable[[], Any]) -> None:
        # Who registers tells more than what is registered, which may be a `functools.partial` or a bound method.
        module = str(sys._getframe(1).f_globals.get("__name__", ""))
        if module.partition(".")[0] not in sys.stdlib_module_names:
            _foreign_hooks.add(module)
        register(**hooks)

    os.register_at_fork = noticed  # type: ignore[assignment]  # the same but for what it remembers
    try:
        yield
    finally:
        os.register_at_fork = register
