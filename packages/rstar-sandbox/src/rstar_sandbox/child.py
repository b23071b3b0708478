"""The single-use child of a slot: gives up its rights, waits for its program, runs it, reports, ends.

It is forked ahead of the call, so that all of this but the program itself is done when the call comes. The report
(value, traceback, how the main code ended) goes over its own channel as JSON; the verdict is the slot's.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import os
import random
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable
from json.encoder import encode_basestring_ascii as _quoted
from typing import Any, NoReturn

from rstar_sandbox import hot, isolation
from rstar_sandbox.interpreter import PROGRAM_NAME, finish_interpreter, give_stdin, interruptible
from rstar_sandbox.levels import OFF
from rstar_sandbox.messages import Job, receive, unpack
from rstar_sandbox.program import Ending, fresh_main, run_source
from rstar_sandbox.watch import MAX_PROCESSES

__all__ = [
    "BEGIN",
    "CHANNEL_DESCRIPTOR",
    "be_child",
    "be_prepared_child",
    "child_limits",
    "limits_are_fixed",
    "report_of",
    "rights_of_child",
]

BEGIN = b"BEGIN"
"""First word of the line that a child sends when its program begins; monotonic and CPU nanoseconds follow."""
MAX_FILE_BYTES = 256 * 1024 * 1024
MAX_OPEN_FILES = 256
# A high number, out of the way of programs that count on 3 being the next one.
CHANNEL_DESCRIPTOR = MAX_OPEN_FILES - 1
# The kernel kills at the hard limit a program that shrugs off SIGXCPU at the soft one.
_HARD_CPU_EXTRA_SECONDS = 1


def be_child(
    ends: tuple[int, int, int],
    plan: isolation.Plan,
    user: int | None,
    confinement: isolation.Confinement,
    limits: tuple[tuple[int, int], ...],
    mapped: int,
) -> NoReturn:
    """What a freshly forked process does for the rest of its life. Never runs the caller's clean-up.

    Args:
        ends: descriptors that become standard output, standard error, and the channel to the slot, over which a job
            or cells come in and reports go out.
        plan: the isolation to enter.
        user: id to take on; None: stay.
        confinement: of the slot.
        limits: of `child_limits`.
        mapped: address space of the slot, bytes.
    """
    end = os._exit  # programs may replace what modules hold, not what this frame does
    try:
        hot.enter(ends, *rights_of_child(plan, user, confinement, limits))
        interruptible()
        threading.main_thread()._set_native_id()  # type: ignore[attr-defined]  # CPython does not after a fork
        service = socket.socket(fileno=CHANNEL_DESCRIPTOR)
        frame = receive(service)
        if frame is None:
            end(0)
        else:
            _serve_frame(service, frame, mapped, plan)
    except BaseException as error:  # the sandbox's own fault, or a program that broke the runner; never a traceback
        _say_broken(error)
    finally:
        end(70)


def be_prepared_child(start: Callable[[], str | bytes], plan: isolation.Plan, mapped: int) -> NoReturn:
    """The same for the children of a forker. Called in the forker: returns from `start` are those of children.

    Args:
        start: `serve_forks` of the extension, which does in a child what `be_child` does before the program begins, and
            returns the program; or, as bytes, a frame that is to be served from there on.
        plan: the isolation that a child has entered then.
        mapped: address space of the forker, bytes.
    """
    # Nothing is made, set or looked up in a child that can be made, set or looked up here.
    end, getpid, write, run, finish, report = os._exit, os.getpid, _write_all, run_source, finish_interpreter, report_of
    numpy_random: Any = sys.modules.get("numpy.random")
    try:
        namespace = fresh_main().__dict__
        namespace["__file__"] = PROGRAM_NAME
        gc.enable()
        given = start()
        if type(given) is bytes:
            random.seed()  # as after `os.fork`
            _serve_frame(socket.socket(fileno=CHANNEL_DESCRIPTOR), unpack(given), mapped, plan)
        assert type(given) is str
        if numpy_random is not None:
            numpy_random.seed(int.from_bytes(os.urandom(4), "little"))
            _say_begin()
        main_process = getpid()
        ending = run(given, PROGRAM_NAME, namespace)
        finish()
        if getpid() == main_process:  # a fork that the program made falls through to here too
            write(report(ending))
        end(ending.exit_code)
    except BaseException as error:  # as above
        _say_broken(error)
    finally:
        end(70)


def rights_of_child(
    plan: isolation.Plan, user: int | None, confinement: isolation.Confinement, limits: tuple[tuple[int, int], ...]
) -> tuple[int, str, tuple[tuple[int, int], ...], int | None, bool, bool, int]:
    """What a child of a slot enters: the arguments of `hot.enter` after the first."""
    contained = plan.level != OFF
    return (
        CHANNEL_DESCRIPTOR,
        confinement.home,
        limits,
        user,
        contained and plan.drop_capabilities,
        contained and not plan.namespaces,
        confinement.ruleset,
    )


def _serve_frame(service: socket.socket, frame: dict[str, Any], mapped: int, plan: isolation.Plan) -> NoReturn:
    """Runs the program, or the session, that a frame asks for."""
    job = Job.from_frame({**frame, "kind": "job"})
    if frame["kind"] == "session":
        _run_session(service, job, mapped, plan)
    if plan.resource_limits:
        _limit_memory(job.limits.memory_bytes, mapped)
        _limit_cpu(job.limits.cpu_seconds)
    give_stdin(job.stdin)
    _run_job(job)


def _say_broken(error: BaseException) -> None:
    with contextlib.suppress(BaseException):
        content = json.dumps({"broken": f"{type(error).__name__}: {error}"})
        os.write(CHANNEL_DESCRIPTOR, content.encode())


def report_of(ending: Ending) -> bytes:
    """How the main code ended, as one JSON line."""
    # Put together by hand: the encoder's own Python code would be copied into each child.
    value, trace = (b"null" if text is None else _quoted(text).encode() for text in (ending.value, ending.traceback))
    words = (_quoted(ending.kind).encode(), value, trace, ending.exit_code)
    return b'{"end": %s, "value": %s, "traceback": %s, "exit_code": %d}\n' % words


def _run_job(job: Job) -> NoReturn:
    getpid, end, write = os.getpid, os._exit, _write_all
    main_process = getpid()
    _seed(job)
    namespace = fresh_main().__dict__
    namespace["__file__"] = PROGRAM_NAME
    gc.enable()
    _say_begin()
    ending = run_source(job.code, PROGRAM_NAME, namespace)
    finish_interpreter()
    if getpid() == main_process:  # a fork that the program made falls through to here too
        write(report_of(ending))
    end(ending.exit_code)
    raise AssertionError("the process has ended")


def _run_session(service: socket.socket, opening: Job, mapped: int, plan: isolation.Plan) -> NoReturn:
    """Runs cells one after another in one namespace until the slot closes the channel."""
    getpid, end, write = os.getpid, os._exit, _write_all
    main_process = getpid()
    if plan.resource_limits:
        _limit_memory(opening.limits.memory_bytes, mapped)
    _seed(opening)
    namespace = fresh_main().__dict__
    gc.enable()
    number = 0
    while (frame := _next_cell(service)) is not None:
        cell = Job.from_frame(frame)
        number += 1
        give_stdin(cell.stdin, again=True)
        if plan.resource_limits:
            _limit_cell_cpu(cell.limits.cpu_seconds)
        _say_begin()
        try:
            ending = run_source(cell.code, f"cell {number}", namespace)
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(BaseException):
                    stream.flush()
        except KeyboardInterrupt:  # the interrupt came just after the cell's own code
            ending = Ending("error", traceback="KeyboardInterrupt\n", exit_code=1)
        if getpid() != main_process:
            end(ending.exit_code)
        write(report_of(ending))
    end(0)
    raise AssertionError("the process has ended")


def _next_cell(service: socket.socket) -> dict[str, Any] | None:
    while True:
        try:
            return receive(service)
        except KeyboardInterrupt:  # an interrupt meant for a cell that had just ended
            continue


def child_limits(user: int | None, plan: isolation.Plan) -> tuple[tuple[int, int], ...]:
    """Resource limits of every child, by kind; those that depend on the job are set when it comes."""
    if not plan.resource_limits:
        return ()
    limits = (
        (resource.RLIMIT_FSIZE, MAX_FILE_BYTES),
        (resource.RLIMIT_NOFILE, MAX_OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_MEMLOCK, 65536),
    )
    if plan.control_groups:
        return limits
    # Counted by user id (and user namespace): where programs have the service's own, on top of everything that runs
    # now. Root is not counted.
    others = 0 if user is not None or plan.user_namespace else _tasks_of_the_machine()
    return (*limits, (resource.RLIMIT_NPROC, others + MAX_PROCESSES))


def limits_are_fixed(user: int | None, plan: isolation.Plan) -> bool:
    """Whether `child_limits` is the same for every child, whatever else runs on the machine."""
    return not plan.resource_limits or plan.control_groups or user is not None or plan.user_namespace


def _limit_memory(memory_bytes: int, mapped: int) -> None:
    # On top of what the warmed interpreter has mapped already, so that a limit means the same in every tier.
    _set_limit(resource.RLIMIT_AS, mapped + memory_bytes, mapped + memory_bytes)


def _limit_cpu(seconds: float) -> None:
    limit = max(1, int(seconds + time.process_time() + 0.999))
    _set_limit(resource.RLIMIT_CPU, limit, limit + _HARD_CPU_EXTRA_SECONDS)


def _limit_cell_cpu(seconds: float) -> None:
    """A cell's CPU limit, on top of what earlier cells used."""
    soft = int(time.process_time() + seconds + 0.999)
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    resource.setrlimit(resource.RLIMIT_CPU, (soft if hard == resource.RLIM_INFINITY else min(soft, hard), hard))


def _set_limit(kind: int, soft: int, hard: int) -> None:
    top = resource.getrlimit(kind)[1]
    if top != resource.RLIM_INFINITY:
        hard = min(hard, top)
    resource.setrlimit(kind, (min(soft, hard), hard))


def _tasks_of_the_machine() -> int:
    """Processes and threads of all users; the quickest number that is at least the user's own."""
    with open("/proc/loadavg", "rb") as file:
        return int(file.read().split()[3].split(b"/")[1])


def _seed(job: Job) -> None:
    """`random` has fresh entropy after each fork; NumPy's global generator has not."""
    if job.seed is not None:
        # Keyed by the program, so that the same program gives the same numbers and different ones do not.
        digest = hashlib.sha256(f"{job.seed}\0{job.code}\0".encode("utf-8", "surrogatepass") + job.stdin).digest()
        random.seed(digest)
    numpy_random: Any = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed(int.from_bytes(digest[:4] if job.seed is not None else os.urandom(4), "little"))


def _say_begin() -> None:
    os.write(CHANNEL_DESCRIPTOR, b"%s %d %d\n" % (BEGIN, time.monotonic_ns(), time.process_time_ns()))


def _write_all(content: bytes, descriptor: int = CHANNEL_DESCRIPTOR) -> None:
    done = 0
    while done < len(content):
        done += os.write(descriptor, content[done:])
