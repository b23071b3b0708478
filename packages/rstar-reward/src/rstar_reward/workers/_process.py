"""What zygote and workers do to their own process: die with the parent, and limits."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys

__all__ = ["die_with_parent", "forbid_effects", "limit_worker", "silence"]

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


# Audit events of Python that reach beyond the process.
_EFFECTS = frozenset({
    "os.chmod", "os.chown", "os.exec", "os.fork", "os.forkpty", "os.link", "os.mkdir", "os.posix_spawn", "os.putenv",
    "os.remove", "os.rename", "os.rmdir", "os.spawn", "os.symlink", "os.system", "os.truncate", "pty.spawn",
    "shutil.copyfile", "shutil.move", "shutil.rmtree", "socket.bind", "socket.connect", "subprocess.Popen",
})  # fmt: skip


def forbid_effects() -> None:
    """Makes this process refuse to start programs, to change files, to connect and to signal others, for good.

    Nothing here does so; if an answer ever got a library to try, the attempt would end in an error.
    """

    def refuse(event: str, arguments: tuple[object, ...]) -> None:
        signals_other = event == "os.kill" and arguments[0] != os.getpid()
        if event in _EFFECTS or signals_other or (event == "open" and _would_write(arguments)):
            raise PermissionError(f"{event} is not allowed in a worker")

    sys.addaudithook(refuse)


def _would_write(arguments: tuple[object, ...]) -> bool:
    _, mode, flags = arguments
    if isinstance(mode, str) and set(mode) & set("wax+"):
        return True
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))


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
