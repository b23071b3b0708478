"""Making an interpreter cheap to fork: all is imported and exercised, and children write to little of it."""

from __future__ import annotations

import gc
from collections.abc import Sequence

from rstar_sandbox import hot
from rstar_sandbox._memory import collapse
from rstar_sandbox.rehearsal import rehearse
from rstar_sandbox.warmup import warm_up

__all__ = ["make_forkable"]


def make_forkable(scientific: Sequence[str]) -> list[str]:
    """Warms the interpreter up and settles its memory; the caller forks from now on.

    Args:
        scientific: modules to import beside the standard library.

    Returns:
        Those of them that are warm.
    """
    warmed = warm_up(scientific)
    rehearse(warmed)
    gc.collect()
    hot.make_immortal()
    # A collection in a child would else look at, and so write to, every object.
    gc.freeze()
    collapse()
    return warmed
