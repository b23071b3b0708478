"""Seeds: every random choice of a run gets its own, derived from the run's seed and from what it is for.

Derived rather than drawn one after another, so that a resumed run needs no generator state to continue bit for bit.
"""

from __future__ import annotations

import hashlib

__all__ = ["derive_seed"]


def derive_seed(run_seed: int, *purpose: str | int) -> int:
    """A 63-bit seed for one purpose, such as `derive_seed(seed, "rollout", "rl-1", step)`."""
    text = "\x1f".join(str(part) for part in (run_seed, *purpose))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
