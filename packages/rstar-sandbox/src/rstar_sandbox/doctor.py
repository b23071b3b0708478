"""What this machine offers a sandbox, and whether the sandbox works on it."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from typing import Any

from rstar_sandbox.isolation import Plan

__all__ = ["examine", "probe_apart"]

_SELF_TEST = {
    "a value": ("2 + 3", "ok"),
    "no network": ("import socket\nsocket.create_connection(('192.0.2.1', 9), 0.2)", "error"),
    "a timeout": ("while True: pass", "timeout"),
    "a memory limit": ("x = bytearray(1 << 40)", "memory_limit"),
}


def examine() -> dict[str, Any]:
    """Findings by name, plain values."""
    from rstar_sandbox.limits import Limits
    from rstar_sandbox.sandbox import Sandbox

    plan = probe_apart()
    findings: dict[str, Any] = {
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "user id": os.geteuid(),
        "isolation level": plan.level,
        "primitives": {name: value for name, value in plan.to_dict().items() if name != "level"},
    }
    started = time.monotonic()
    with Sandbox(slots=1) as sandbox:
        sandbox.run("")
        findings["start-up seconds"] = round(time.monotonic() - started, 2)
        outcomes = {
            name: (sandbox.run(code, limits=Limits(wall_seconds=1.0)).status.value, wanted)
            for name, (code, wanted) in _SELF_TEST.items()
        }
        samples = sorted(_milliseconds(sandbox) for _ in range(20))
    passed = all(found == wanted for found, wanted in outcomes.values())
    findings["self-test"] = {"passed": passed, **{name: found for name, (found, _) in outcomes.items()}}
    findings["median call ms"] = round(samples[len(samples) // 2], 2)
    return findings


def probe_apart() -> Plan:
    """The probe forks, so it gets a process of its own, without gRPC's threads."""
    program = "import json; from rstar_sandbox.probe import probe; print(json.dumps(probe().to_dict()))"

    # Our own program.
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)  # noqa: S603
    return Plan(**json.loads(answer.stdout))


def _milliseconds(sandbox: Any) -> float:
    started = time.perf_counter()
    sandbox.run("1 + 1")
    return (time.perf_counter() - started) * 1000
