"""The loop of a slot: takes jobs and sessions from the service, one after another, and answers each.

A slot lives long, the child of each call only once; the verdict on it comes from here, outside the child.
"""

from __future__ import annotations

import os
import shutil
import time
from typing import NoReturn

from rstar_sandbox import processes
from rstar_sandbox.capture import Capture
from rstar_sandbox.child import Descriptors, run_child
from rstar_sandbox.files import UnusablePathError, collect_files, write_files
from rstar_sandbox.messages import Job, Outcome, receive, send
from rstar_sandbox.session import serve_session
from rstar_sandbox.slot import Slot, remove_folder
from rstar_sandbox.verdict import judge, read_report
from rstar_sandbox.watch import MAX_OUTPUT_BYTES, MAX_REPORT_BYTES, Pipes, ServiceGoneError, Watch

__all__ = ["run_job", "slot_main"]


def slot_main(slot: Slot) -> NoReturn:
    """Serves jobs until the service closes the connection."""
    try:
        while (frame := receive(slot.connection)) is not None:
            if frame["kind"] == "job":
                outcome = run_job(slot, Job.from_frame(frame))
                send(slot.connection, outcome.frame())
            elif frame["kind"] == "session":
                serve_session(slot, frame)
            elif frame["kind"] == "close":
                break
    except (ServiceGoneError, BrokenPipeError, ConnectionResetError):
        pass
    finally:
        processes.kill_all()
        shutil.rmtree(slot.folder, ignore_errors=True)
        os._exit(0)


def run_job(slot: Slot, job: Job) -> Outcome:
    """Runs one program to its end and says how it ended.

    Raises:
        ServiceGoneError: nobody is there to take the outcome; the program is dead.
    """
    folder = slot.new_folder()
    out, err = Capture(job.limits.max_stdout_bytes), Capture(job.limits.max_stderr_bytes)
    report = Capture(MAX_REPORT_BYTES)
    try:
        try:
            write_files(folder, job.files, slot.user)
        except UnusablePathError as problem:
            return Outcome("error", traceback=f"FileNotFoundError: {problem}")
        inherited = processes.own_anonymous_bytes()
        started = time.monotonic()
        pid = os.fork()
        if pid == 0:
            ends = Descriptors(out.write_end, err.write_end, report.write_end)
            run_child(job, folder, ends, slot.plan, slot.user)
        for capture in (out, err, report):
            capture.close_write_end()
        watch = Watch(slot.connection, job.limits, pid, Pipes(out, err, report), started, inherited)
        try:
            watch.run()
        finally:
            processes.kill_all()
        wall = time.monotonic() - started
        for capture in (out, err, report):
            capture.drain_rest(MAX_OUTPUT_BYTES)
        return _outcome(watch, job, wall, folder)
    finally:
        for capture in (out, err, report):
            capture.close()
        remove_folder(folder)


def _outcome(watch: Watch, job: Job, wall: float, folder: str) -> Outcome:
    if watch.killed_for == "cancelled":
        return Outcome("unavailable", cancelled=True, detail="cancelled by the client")
    report = read_report(watch.pipes.report.content)
    verdict = judge(watch.wait_status, watch.killed_for, watch.cpu_seconds, job.limits.cpu_seconds, report)
    if verdict.status == "crashed" and watch.pipes.report.content.startswith(b'{"broken"'):
        return Outcome("unavailable", detail=f"the child could not start: {watch.pipes.report.content[:1000]!r}")
    files, left_out = collect_files(folder, job.collect)
    return Outcome(
        status=verdict.status,
        stdout=watch.pipes.out.content,
        stderr=watch.pipes.err.content,
        stdout_bytes=watch.pipes.out.total_bytes,
        stderr_bytes=watch.pipes.err.total_bytes,
        value=verdict.value,
        traceback=verdict.traceback,
        exit_code=verdict.exit_code,
        signal=verdict.signal,
        wall_seconds=wall,
        cpu_seconds=watch.cpu_seconds,
        peak_memory_bytes=watch.peak_bytes,
        files=files,
        detail=f"not returned: {', '.join(left_out)}" if left_out else "",
    )
