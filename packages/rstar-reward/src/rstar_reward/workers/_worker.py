"""A worker: forked from the zygote, takes one job at a time from its socket, and may be killed at any moment."""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
import time
from types import FrameType
from typing import Any

from rstar_reward.verifiers import Judgement, load_verifier
from rstar_reward.workers import _process, _wire

__all__ = ["serve_jobs"]

_RECURSION_LIMIT = 3000
# A worker that has grown is replaced between jobs; a fork of the zygote is cheap.
_RETIRE_ABOVE = 0.5
_RETIRE_AFTER_JOBS = 5000


def serve_jobs(connection: socket.socket, zygote_pid: int, memory_bytes: int) -> None:
    """Answers jobs until the other end closes. Never returns."""
    _process.die_with_parent(zygote_pid)
    _process.silence(2)
    _process.limit_worker(memory_bytes)
    _process.forbid_effects()
    sys.setrecursionlimit(_RECURSION_LIMIT)
    _wire.send(connection, {"pid": os.getpid()})
    jobs = 0
    while (job := _wire.receive(connection)) is not None:
        if "ping" in job:
            _wire.send(connection, {"kind": "done"})
            continue
        jobs += 1
        answer = _run(connection, job)
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        answer["cpu_total"] = time.process_time()
        answer["last"] = used > memory_bytes * _RETIRE_ABOVE or jobs >= _RETIRE_AFTER_JOBS
        _wire.send(connection, answer)
        if answer["last"]:
            break
    os._exit(0)


def _run(connection: socket.socket, job: dict[str, Any]) -> dict[str, Any]:
    start = time.process_time()

    def give_up(number: int, frame: FrameType | None) -> None:
        # Raising here would leave half-filled caches behind; a process that ends leaves nothing.
        used = time.process_time() - start
        _wire.send(connection, {"kind": "timeout", "cpu_seconds": used, "last": True})
        os._exit(0)

    for number, timer, seconds in (
        (signal.SIGPROF, signal.ITIMER_PROF, job["cpu_seconds"]),
        (signal.SIGALRM, signal.ITIMER_REAL, job["wall_seconds"]),
    ):
        signal.signal(number, give_up)
        signal.setitimer(timer, seconds)
    try:
        return {"kind": "done", **_perform(connection, job)}
    except MemoryError:
        return {"kind": "memory"}
    except RecursionError:
        return {"kind": "recursion"}
    except Exception as error:  # whatever a library raised about this pair of texts
        return {"kind": "error", "reason": f"{type(error).__name__}: {error}"[:300]}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


def _perform(connection: socket.socket, job: dict[str, Any]) -> dict[str, Any]:
    verifier = load_verifier(job["verifier"])
    if job["check_gold"]:
        problem = verifier.check_gold(job["gold"]) or ""
        # Told before the comparison: what goes wrong from here on is the fault of the response.
        _wire.send(connection, {"kind": "gold", "problem": problem})
        if problem or job["candidate"] is None:
            return {"status": "bad_gold" if problem else "correct", "reason": problem}
    judgement: Judgement = verifier.judge(job["gold"], job["candidate"])
    return {"status": judgement.status.value, "reason": judgement.reason}
