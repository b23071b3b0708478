"""The self-test: a level is only what it says when a program that tries to get out does not.

Run once when a service starts, and by `doctor`.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rstar_sandbox.isolation import Plan
from rstar_sandbox.levels import LIMITS, OFF
from rstar_sandbox.limits import DEFAULT_LIMITS
from rstar_sandbox.messages import Job, Outcome

if TYPE_CHECKING:
    from rstar_sandbox.template import Template

__all__ = ["admit", "attack_job", "successes", "targets"]

_SECONDS = 60.0


async def admit(template: Template) -> tuple[Plan, tuple[str, ...]]:
    """Attacks a template's slot; a plan that does not hold is reported as `limits`.

    Returns:
        The plan with the level it earns, and the attacks that succeeded.
    """
    plan = template.plan
    assert plan is not None
    if plan.level in (LIMITS, OFF):
        return plan, ()
    slot = await template.acquire()
    with targets() as target:
        frame = await asyncio.wait_for(slot.exchange(attack_job(target).frame()), 2 * _SECONDS)
    template.release(slot)
    found = successes(Outcome.from_frame(frame)) if frame is not None else ("end its slot",)
    return (replace(plan, level=LIMITS) if found else plan), found


def attack_job(target: dict[str, Any]) -> Job:
    """The self-test as a job."""
    source = Path(__file__).with_name("_attack_program.py").read_text(encoding="utf-8")
    return Job(source, json.dumps(target).encode(), replace(DEFAULT_LIMITS, wall_seconds=_SECONDS))


def successes(outcome: Outcome) -> tuple[str, ...]:
    """Which attacks succeeded; a self-test that did not get to its end counts as one."""
    try:
        found = json.loads(outcome.stdout)
    except ValueError:
        found = None
    if outcome.status != "ok" or not isinstance(found, list):
        return (f"end the self-test ({outcome.status}: {(outcome.traceback or outcome.detail)[-300:]})",)
    return tuple(str(name) for name in found)


@contextmanager
def targets() -> Iterator[dict[str, Any]]:
    """What an attack tries to reach: a file that anybody may read, sockets that listen, this process."""
    with (
        tempfile.TemporaryDirectory(prefix="rstar-target-") as folder,
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX) as local,
    ):
        os.chmod(folder, 0o755)  # noqa: S103 - so that only the sandbox keeps a program out
        file = Path(folder, "file")
        file.write_text("secret")
        file.chmod(0o644)
        local.bind(f"{folder}/socket")
        local.listen()
        yield {
            "file": str(file),
            "socket": f"{folder}/socket",
            "port": server.getsockname()[1],
            "pid": os.getpid(),
        }
