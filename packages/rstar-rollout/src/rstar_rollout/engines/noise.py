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
        self._first = key.position

    def uniform(self, position: int) -> float:
        """A number in the open interval (0, 1) for the token at ``position`` after those that the turn began with."""
        raw = hashlib.blake2b(struct.pack("<Q", self._first + position), key=self._key, digest_size=8).digest()
        return ((int.from_bytes(raw, "little") >> 12) + 0.5) * 2.0**-52


def turn_seed(key: NoiseKey) -> int:
    """A seed in [0, 2^63) for engines that bring their own generator; another one where the turn goes on."""
    return int.from_bytes(_digest(key, f"\0{key.position}" if key.position else "")[:8], "little") >> 1


def _digest(key: NoiseKey, more: str = "") -> bytes:
    text = f"rstar-noise\0{key.seed}\0{key.problem_id}\0{key.sample_index}\0{key.turn}{more}"
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=32).digest()
