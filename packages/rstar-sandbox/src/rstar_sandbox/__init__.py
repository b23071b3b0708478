"""Runs untrusted Python programs fast: alone in a Python process, or as a gRPC service."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rstar_sandbox.client import SandboxClient
    from rstar_sandbox.limits import Limits
    from rstar_sandbox.results import ExecutionResult
    from rstar_sandbox.sandbox import Sandbox, Session
    from rstar_sandbox.status import Status

__all__ = ["ExecutionResult", "Limits", "Sandbox", "SandboxClient", "Session", "Status"]

# Loaded on first use: the zygote imports this package too, and must not load gRPC.
_HOMES = {
    "ExecutionResult": "rstar_sandbox.results",
    "Limits": "rstar_sandbox.limits",
    "Sandbox": "rstar_sandbox.sandbox",
    "SandboxClient": "rstar_sandbox.client",
    "Session": "rstar_sandbox.sandbox",
    "Status": "rstar_sandbox.status",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
