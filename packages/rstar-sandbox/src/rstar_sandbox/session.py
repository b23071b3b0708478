"""A session inside a slot: one child that lives on between cells and keeps the namespace.

A slot that served a session is not used for anything else and ends with it. The truth about the state is the
slot's to tell: a cell that reported leaves the state kept, a child that died takes it with it.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import sys
import time
from dataclasses import replace
from typing import Any, NoReturn

from rstar_sandbox import isolation, processes
from rstar_sandbox.capture import Capture
from rstar_sandbox.child import Descriptors, enter, give_stdin, send_report
from rstar_sandbox.messages import Job, Outcome, receive, send
from rstar_sandbox.program import fresh_main, run_source
from rstar_sandbox.slot import Slot, remove_folder
from rstar_sandbox.verdict import judge, read_report
from rstar_sandbox.watch import MAX_REPORT_BYTES, Pipes, Watch

__all__ = ["serve_session"]

INTERRUPT_SECONDS = 0.5
"""What a cell that reached its wall limit gets between SIGINT and SIGKILL."""


def serve_session(slot: Slot, frame: dict[str, Any]) -> None:
    """Serves the cells of one session until the service closes it or the child is lost."""
    opening = Job.from_frame({**frame, "kind": "job"})
    folder = slot.new_folder()
    pipes = Pipes(Capture(0), Capture(0), Capture(MAX_REPORT_BYTES))
    ours, theirs = socket.socketpair()
    inherited = processes.own_anonymous_bytes()
    pid = os.fork()
    if pid == 0:
        ours.close()
        ends = Descriptors(pipes.out.write_end, pipes.err.write_end, pipes.report.write_end, theirs.fileno())
        _session_child(opening, folder, ends, slot.plan, slot.user)
    theirs.close()
    for capture in pipes.all():
        capture.close_write_end()
    try:
        lost = ""
        while (request := receive(slot.connection)) is not None and request["kind"] == "job":
            cell = Job.from_frame(request)
            if lost:
                send(slot.connection, Outcome("unavailable", state_lost=lost, detail=lost).frame())
                continue
            outcome = _run_cell(slot, ours, pid, cell, pipes, inherited)
            lost = outcome.state_lost
            send(slot.connection, outcome.frame())
    finally:
        processes.kill_all()
        ours.close()
        for capture in pipes.all():
            capture.close()
        remove_folder(folder)


def _run_cell(slot: Slot, channel: socket.socket, pid: int, cell: Job, pipes: Pipes, inherited: int) -> Outcome:
    pipes.out.restart(cell.limits.max_stdout_bytes)
    pipes.err.restart(cell.limits.max_stderr_bytes)
    pipes.report.restart(MAX_REPORT_BYTES)
    started = time.monotonic()
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # a dead child is seen by the watch
        send(channel, cell.frame())
    watch = Watch(slot.connection, cell.limits, pid, pipes, started, inherited, INTERRUPT_SECONDS)
    watch.run(lambda: pipes.report.content.endswith(b"\n"))
    wall = time.monotonic() - started
    if watch.exited:
        processes.kill_all()
    for capture in pipes.all():
        while capture.drain():
            pass
    base = Outcome(
        "ok",
        stdout=pipes.out.content,
        stderr=pipes.err.content,
        stdout_bytes=pipes.out.total_bytes,
        stderr_bytes=pipes.err.total_bytes,
        wall_seconds=wall,
        cpu_seconds=watch.cpu_seconds,
        peak_memory_bytes=watch.peak_bytes,
    )
    report = read_report(pipes.report.content)
    if watch.exited:
        verdict = judge(watch.wait_status, watch.killed_for, watch.cpu_seconds, cell.limits.cpu_seconds, None)
        reason = f"the session's process ended during a cell ({verdict.status})"
        if watch.killed_for == "cancelled":
            return Outcome("unavailable", cancelled=True, state_lost=reason, detail="cancelled by the client")
        return replace(
            base, status=verdict.status, exit_code=verdict.exit_code, signal=verdict.signal, state_lost=reason
        )
    if report is None:
        return replace(base, status="crashed")
    status = {"ok": "ok", "error": "error", "memory": "memory_limit"}.get(report.end)
    if status is None:
        status = "ok" if report.exit_code == 0 else "crashed"
    if watch.interrupted:
        status = "timeout"
    return replace(base, status=status, value=report.value, traceback=report.traceback, exit_code=report.exit_code)


def _session_child(opening: Job, folder: str, ends: Descriptors, plan: isolation.Plan, user: int | None) -> NoReturn:
    try:
        kept = enter(opening, folder, ends, plan, user)
        channel = socket.socket(fileno=kept.channel)
        main_process = os.getpid()
        namespace = fresh_main().__dict__
        number = 0
        while (frame := _next_cell(channel)) is not None:
            cell = Job.from_frame(frame)
            number += 1
            give_stdin(cell.stdin)
            _allow_cpu(cell.limits.cpu_seconds)
            try:
                ending = run_source(cell.code, f"cell {number}", namespace)
                for stream in (sys.stdout, sys.stderr):
                    with contextlib.suppress(BaseException):
                        stream.flush()
            except KeyboardInterrupt:  # the interrupt came just after the cell's own code
                continue
            if os.getpid() != main_process:
                os._exit(ending.exit_code)
            send_report(kept.report, ending)
    finally:
        os._exit(0)


def _next_cell(channel: socket.socket) -> dict[str, Any] | None:
    while True:
        try:
            return receive(channel)
        except KeyboardInterrupt:  # an interrupt meant for a cell that had just ended
            continue


def _allow_cpu(seconds: float) -> None:
    """A cell's CPU limit, on top of what earlier cells used."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(usage.ru_utime + usage.ru_stime + seconds + 0.999)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))
