"""Keeps glibc from giving freed memory back to the system after every tensor.

On the CPU each large tensor is otherwise a fresh mapping whose pages are faulted in one by one: about half of the
processor time of a training step. With these settings freed memory is used again.
"""

from __future__ import annotations

import ctypes
import sys

__all__ = ["ALLOCATOR_ENVIRONMENT", "keep_freed_memory"]

_TOP_PAD_BYTES = 64 * 1024 * 1024

ALLOCATOR_ENVIRONMENT = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(2**40),
    "MALLOC_TOP_PAD_": str(_TOP_PAD_BYTES),
    "MALLOC_ARENA_MAX": "1",
}
"""For a child process that computes, set before it starts."""

# Parameters of mallopt(3).
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX, _ARENA_MAX = -1, -2, -4, -8


def keep_freed_memory() -> bool:
    """The same for this process; False where the C library has no such settings."""
    if sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:
        return False
    settings = {_MMAP_MAX: 0, _TRIM_THRESHOLD: 2**31 - 1, _TOP_PAD: _TOP_PAD_BYTES, _ARENA_MAX: 1}
    return all(mallopt(parameter, value) == 1 for parameter, value in settings.items())
