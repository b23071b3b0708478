"""A session inside a slot: one child that lives on between cells and keeps the namespace.

A slot that served a session is not used for anything else and ends with it. The truth about the state is the
slot's to tell: a cell that reported leaves the state kept, a child that died takes it with it.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

from rstar_sandbox.files import UnusablePathError, collect_files, write_files
from rstar_sandbox.messages import Job, Outcome, receive, send
from rstar_sandbox.slot import Slot, WaitingChild
from rstar_sandbox.verdict import judge, read_report
from rstar_sandbox.watch import MAX_REPORT_BYTES, Watch

__all__ = ["serve_session"]

INTERRUPT_SECONDS = 0.5
"""What a cell that reached its wall limit gets between SIGINT and SIGKILL."""
_STATUS_OF_END = {"ok": "ok", "error": "error", "memory": "memory_limit"}


def serve_session(slot: Slot, child: WaitingChild, frame: dict[str, Any]) -> None:
    """Serves the cells of one session until the service closes it."""
    try:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            slot.family.start(child.channel, frame)
        child.channel.setblocking(False)
        lost, cpu_before = "", 0.0
        while (request := receive(slot.connection)) is not None and request["kind"] == "job":
            if lost:
                send(slot.connection, Outcome("unavailable", state_lost=lost, detail=lost).frame())
                continue
            outcome, cpu_before = _run_cell(slot, child, Job.from_frame(request), cpu_before)
            lost = outcome.state_lost
            send(slot.connection, replace(outcome, tier=slot.tier, isolation=slot.plan.level).frame())
    finally:
        slot.family.end()
        child.close()
        slot.clean()


def _run_cell(slot: Slot, child: WaitingChild, cell: Job, cpu_before: float) -> tuple[Outcome, float]:
    """Runs a cell; returns how it ended, and the CPU seconds that the session has used so far."""
    pipes = child.pipes
    for capture in pipes.all():
        capture.drain_rest(MAX_REPORT_BYTES)  # what threads of earlier cells wrote since belongs to no cell
    pipes.out.restart(cell.limits.max_stdout_bytes)
    pipes.err.restart(cell.limits.max_stderr_bytes)
    pipes.report.restart(MAX_REPORT_BYTES)
    try:
        write_files(slot.home, cell.files, slot.user)
    except UnusablePathError as problem:
        return Outcome("error", traceback=f"OSError: {problem}"), cpu_before
    meter = slot.meter(cell.limits)
    watch = Watch(slot.connection, cell.limits, child.pid, slot.family, pipes, meter, INTERRUPT_SECONDS)
    child.channel.setblocking(True)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # a dead child is seen by the watch
        send(child.channel, {**cell.frame(), "files": {}, "collect": ()})
    child.channel.setblocking(False)
    try:
        watch.run(lambda: watch.started > 0 and pipes.report.ends_with(b"\n"))
    except BaseException:
        slot.family.end()
        raise
    if watch.exited:
        slot.family.end()
    for capture in pipes.all():
        capture.drain_rest(MAX_REPORT_BYTES)
    files, left_out = collect_files(slot.home, cell.collect)
    base = Outcome(
        "ok",
        stdout=pipes.out.content,
        stderr=pipes.err.content,
        stdout_bytes=pipes.out.total_bytes,
        stderr_bytes=pipes.err.total_bytes,
        wall_seconds=watch.wall_seconds,
        cpu_seconds=max(0.0, watch.cpu_seconds - cpu_before),
        peak_memory_bytes=watch.peak_bytes,
        files=files,
        detail=f"not returned: {', '.join(left_out)}" if left_out else "",
    )
    if watch.exited:
        return _of_a_dead_child(slot, watch, cell, base), watch.cpu_seconds
    return _of_a_report(watch, base), cpu_before


def _of_a_dead_child(slot: Slot, watch: Watch, cell: Job, base: Outcome) -> Outcome:
    ran_out = slot.group is not None and slot.group.ran_out()
    cpu_limit = cell.limits.cpu_seconds
    verdict = judge(watch.wait_status, watch.killed_for, base.cpu_seconds, cpu_limit, None, ran_out)
    reason = f"the session's process ended during a cell ({verdict.status})"
    if watch.killed_for == "cancelled":
        return Outcome("unavailable", cancelled=True, state_lost=reason, detail="cancelled by the client")
    return replace(base, status=verdict.status, exit_code=verdict.exit_code, signal=verdict.signal, state_lost=reason)


def _of_a_report(watch: Watch, base: Outcome) -> Outcome:
    report = read_report(watch.pipes.report.content)
    if report is None:  # threads of the session wrote to the channel
        return replace(base, status="crashed")
    status = _STATUS_OF_END.get(report.end) or ("ok" if report.exit_code == 0 else "crashed")
    if watch.interrupted:
        status = "timeout"
    return replace(base, status=status, value=report.value, traceback=report.traceback, exit_code=report.exit_code)
