"""What zygote and workers do to their own process: die with the parent, and limits."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys

__all__ = ["die_with_parent", "limit_worker", "silence"]

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int) -> None:
    """Asks the kernel to kill this process when its parent ends, however that happens (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    # The parent may have ended before the request was made.
    if os.getppid() != parent_pid:
        os._exit(1)


def silence(*descriptors: int) -> None:
    """Points standard streams at nothing: results travel over a socket that nothing else writes to."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in descriptors:
        os.dup2(null, descriptor)
    if null not in descriptors:
        os.close(null)


def limit_worker(memory_bytes: int) -> None:
    """Bounds address space and forbids core dumps and file writes."""
    limits = [
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
    ]
    for kind, value in limits:
        with contextlib.suppress(ValueError, OSError):
            _, hard = resource.getrlimit(kind)
            capped = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(kind, (capped, capped))
    # Between the front and a worker, the worker is the one to go when memory runs out.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as adjust:
        adjust.write("800")
