"""Which files of the machine a program may read: the Python runtime and the system's libraries."""

from __future__ import annotations

import os
import site
import sys
import sysconfig

__all__ = ["runtime_paths"]

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix/store", "/gnu/store")
_TOO_WIDE = ("/", "/home", "/root", "/etc", "/var", "/tmp", "/opt", "/srv", "/proc", "/sys", "/dev")  # noqa: S108 - names only


def runtime_paths() -> list[str]:
    """Absolute paths, none below another.

    Entries of `sys.path` that are neither the standard library nor a site-packages folder are left out: the folder of
    the script that started the service may hold anything.
    """
    wanted = {*_SYSTEM, sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix}
    wanted.update(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    wanted.update(site.getsitepackages())
    if site.ENABLE_USER_SITE:
        wanted.add(site.getusersitepackages())
    wanted.add(os.path.dirname(os.path.realpath(sys.executable)))
    found = {os.path.abspath(path) for path in wanted} | {os.path.realpath(path) for path in wanted}
    usable = sorted(path for path in found if path not in _TOO_WIDE and os.path.lexists(path))
    kept: list[str] = []
    for path in usable:
        if not any(path.startswith(other + os.sep) and not os.path.islink(other) for other in kept):
            kept.append(path)
    return kept
