"""Sampling noise as a pure function of its key.

A uniform number per (seed, problem, sample, turn, position), from a keyed hash used as a counter-based generator:
it does not depend on the row a sequence happens to occupy in a batch, nor on what was drawn before.
"""

from __future__ import annotations

import hashlib
import struct

from rstar_rollout.engines.base import NoiseKey

__all__ = ["TurnNoise", "turn_seed"]


class TurnNoise:
    """The uniform numbers of one turn."""

    def __init__(self, key: NoiseKey) -> None:
        self._key = _digest(key)

    def uniform(self, position: int) -> float:
        """A number in the open interval (0, 1) for the token at ``position`` of the turn."""
        raw = hashlib.blake2b(struct.pack("<Q", position), key=self._key, digest_size=8).digest()
        return ((int.from_bytes(raw, "little") >> 12) + 0.5) * 2.0**-52


def turn_seed(key: NoiseKey) -> int:
    """A seed in [0, 2^63) for engines that bring their own generator."""
    return int.from_bytes(_digest(key)[:8], "little") >> 1


def _digest(key: NoiseKey) -> bytes:
    text = f"rstar-noise\0{key.seed}\0{key.problem_id}\0{key.sample_index}\0{key.turn}"
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=32).digest()
