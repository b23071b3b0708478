"""What this machine offers a sandbox, and whether the sandbox works on it."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from typing import Any

from rstar_sandbox.attacks import attack_job, successes, targets
from rstar_sandbox.hot import IMPLEMENTATION
from rstar_sandbox.isolation import Plan
from rstar_sandbox.levels import LEVELS, PROMISES
from rstar_sandbox.messages import Outcome

__all__ = ["examine", "missing_for", "probe_apart"]

_PROGRAMS = {
    "a value": ("2 + 3", "ok"),
    "no network": ("import socket\nsocket.create_connection(('192.0.2.1', 9), 0.2)", "error"),
    "a timeout": ("while True: pass", "timeout"),
    "a memory limit": ("x = bytearray(1 << 40)", "memory_limit"),
}
_NEEDED = {
    "full": ("namespaces", "own_user", "control_groups", "system_call_filter", "landlock"),
    "user": ("namespaces", "system_call_filter", "landlock"),
    "container": ("system_call_filter", "landlock"),
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
        "code around a fork": IMPLEMENTATION,
        "isolation level": plan.level,
        "it promises": PROMISES[plan.level],
        "missing for a higher level": missing_for(plan),
        "primitives": {name: value for name, value in plan.to_dict().items() if name != "level"},
    }
    started = time.monotonic()
    with Sandbox(slots=1) as sandbox, targets() as target:
        sandbox.run("")
        findings["start-up seconds"] = round(time.monotonic() - started, 2)
        outcomes = {
            name: (sandbox.run(code, limits=Limits(wall_seconds=1.0)).status.value, wanted)
            for name, (code, wanted) in _PROGRAMS.items()
        }
        job = attack_job(target)
        attacked = sandbox.run(job.code, job.stdin, timeout_s=60)
        samples = sorted(_milliseconds(sandbox) for _ in range(20))
    found = successes(Outcome(attacked.status.value, attacked.stdout, traceback=attacked.traceback))
    findings["level in results"] = attacked.isolation
    findings["attacks that succeed"] = list(found)
    works = all(status == wanted for status, wanted in outcomes.values())
    # Below the level `container` nothing is promised that an attack could break.
    holds = not found or plan.level not in _NEEDED
    findings["self-test"] = {
        "passed": works and holds and attacked.isolation == plan.level,
        **{name: status for name, (status, _) in outcomes.items()},
    }
    findings["median call ms"] = round(samples[len(samples) // 2], 2)
    return findings


def missing_for(plan: Plan) -> list[str]:
    """What the next higher level needs and this machine does not offer, in words."""
    above = LEVELS[LEVELS.index(plan.level) + 1 :]
    if not above:
        return []
    lacking = [name for name in _NEEDED.get(above[0], ()) if not getattr(plan, name)]
    if above[0] == "full" and plan.user_namespace:
        lacking.append("the rights of root")
    return [f"{above[0]}: {name.replace('_', ' ')}" for name in lacking]


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
