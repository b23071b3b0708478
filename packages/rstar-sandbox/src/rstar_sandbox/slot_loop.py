"""The loop of a slot: takes jobs and sessions from the service, one after another, and answers each.

A slot lives long, the child of each call only once; the verdict on it comes from here, outside the child. The next
call's child is forked as soon as a call is answered, so that a call that comes later finds it waiting.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from typing import Any, NoReturn

from rstar_sandbox.files import UnusablePathError, collect_files, write_files
from rstar_sandbox.messages import Job, Outcome, receive, send
from rstar_sandbox.session import serve_session
from rstar_sandbox.slot import Slot, WaitingChild, leave
from rstar_sandbox.verdict import judge, read_report
from rstar_sandbox.watch import MAX_OUTPUT_BYTES, ServiceGoneError, Watch

__all__ = ["slot_main"]

_START_ATTEMPTS = 3


def slot_main(slot: Slot) -> NoReturn:
    """Serves jobs until the service closes the connection."""
    try:
        slot.fork_ahead()
        while (frame := receive(slot.connection)) is not None:
            if frame["kind"] == "job":
                _serve_job(slot, frame)
            elif frame["kind"] == "session":
                serve_session(slot, slot.take_child(), frame)
                break
            elif frame["kind"] == "close":
                break
    except (ServiceGoneError, BrokenPipeError, ConnectionResetError):
        pass
    except BaseException as error:
        os.write(2, f"sandbox slot: {type(error).__name__}: {error}\n".encode())
    finally:
        with contextlib.suppress(OSError):
            leave(slot)
        os._exit(0)


def _serve_job(slot: Slot, frame: dict[str, Any]) -> None:
    """Answers one job and has the child of the next made."""
    job, ahead = Job.from_frame(frame), True
    for attempt in range(_START_ATTEMPTS):
        child = slot.take_child()
        ahead = ahead and child.ahead and not attempt
        outcome = _run_job(slot, child, job, frame, ahead)
        if outcome.status != "unavailable" or outcome.cancelled:
            break
        if attempt < _START_ATTEMPTS - 1:
            slot.fork_ahead()
    send(slot.connection, outcome.frame())
    slot.fork_ahead()


def _run_job(slot: Slot, child: WaitingChild, job: Job, frame: dict[str, Any], ahead: bool) -> Outcome:
    """Runs one program to its end and says how it ended; unavailable: the child was gone before the program began.

    Raises:
        ServiceGoneError: nobody is there to take the outcome; the program is dead.
    """
    pipes, phases = child.pipes, {}
    cpu_before = time.process_time()
    pipes.out.keep_bytes, pipes.err.keep_bytes = job.limits.max_stdout_bytes, job.limits.max_stderr_bytes
    try:
        refused = _give_files(slot, job)
        watch = Watch(slot.connection, job.limits, child.pid, slot.family, pipes, slot.meter(job.limits))
        try:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # a dead child is seen by the watch
                if refused:
                    child.channel.shutdown(socket.SHUT_WR)
                else:
                    slot.family.start(child.channel, {**frame, "files": {}, "collect": ()})
            child.channel.setblocking(False)
            watch.run()
        finally:
            reaping, reaping_cpu = time.monotonic(), time.process_time()
            leaked = slot.family.end()
            reaped, reaped_cpu = time.monotonic(), time.process_time()
        for capture in pipes.all():
            capture.drain_rest(MAX_OUTPUT_BYTES)
        drained, drained_cpu = time.monotonic(), time.process_time()
        if refused:
            return Outcome("error", traceback=f"OSError: {refused}", isolation=slot.plan.level)
        outcome = _outcome(slot, watch, job)
    finally:
        child.close()
        slot.clean()
    phases["fork"] = (child.wall_seconds, child.cpu_seconds + watch.setup_cpu_seconds)
    phases["exec"] = (watch.wall_seconds, max(0.0, watch.cpu_seconds - watch.setup_cpu_seconds))
    phases["drain"] = (drained - reaped, reaping_cpu - cpu_before + drained_cpu - reaped_cpu)
    cleaned, cleaned_cpu = time.monotonic(), time.process_time()
    wall, cpu = watch.ending
    phases["reap"] = (
        wall + reaped - reaping + cleaned - drained,
        cpu + reaped_cpu - reaping_cpu + cleaned_cpu - drained_cpu,
    )
    return Outcome(
        **{
            **outcome,
            "phases": phases,
            "forked_ahead": ahead,
            "tier": slot.tier,
            "leaked_processes": leaked,
            "isolation": slot.plan.level,
        }
    )


def _give_files(slot: Slot, job: Job) -> str:
    """Writes the files of a job; returns why they cannot be."""
    try:
        write_files(slot.home, job.files, slot.user)
    except UnusablePathError as problem:
        return str(problem)
    return ""


def _outcome(slot: Slot, watch: Watch, job: Job) -> dict[str, Any]:
    if watch.killed_for == "cancelled":
        return {"status": "unavailable", "cancelled": True, "detail": "cancelled by the client"}
    pipes = watch.pipes
    if not watch.started:  # nothing of the program has run
        return {"status": "unavailable", "detail": f"the child did not start: {pipes.report.content[:1000]!r}"}
    report = read_report(pipes.report.content)
    ran_out = slot.group is not None and slot.group.ran_out()
    verdict = judge(watch.wait_status, watch.killed_for, watch.cpu_seconds, job.limits.cpu_seconds, report, ran_out)
    files, left_out = collect_files(slot.home, job.collect) if job.collect else ({}, [])
    return {
        "status": verdict.status,
        "stdout": pipes.out.content,
        "stderr": pipes.err.content,
        "stdout_bytes": pipes.out.total_bytes,
        "stderr_bytes": pipes.err.total_bytes,
        "value": verdict.value,
        "traceback": verdict.traceback,
        "exit_code": verdict.exit_code,
        "signal": verdict.signal,
        "wall_seconds": watch.wall_seconds,
        "cpu_seconds": max(0.0, watch.cpu_seconds - watch.setup_cpu_seconds),
        "peak_memory_bytes": watch.peak_bytes,
        "files": files,
        "detail": f"not returned: {', '.join(left_out)}" if left_out else "",
    }
