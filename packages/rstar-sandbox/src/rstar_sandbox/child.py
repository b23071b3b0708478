"""The single-use child of a slot: makes itself a clean world, runs the program, reports, ends.

The report (value, traceback, how the main code ended) goes over its own pipe as JSON; the verdict is the slot's.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import hashlib
import io
import json
import os
import random
import resource
import signal
import sys
import threading
from dataclasses import dataclass
from typing import Any, NoReturn

from rstar_sandbox import isolation
from rstar_sandbox.messages import Job
from rstar_sandbox.program import Ending, fresh_main, run_source
from rstar_sandbox.watch import MAX_PROCESSES

__all__ = ["PROGRAM_NAME", "Descriptors", "enter", "give_stdin", "run_child", "send_report"]

PROGRAM_NAME = "main.py"
MAX_FILE_BYTES = 256 * 1024 * 1024
MAX_OPEN_FILES = 256
# High numbers, out of the way of programs that count on 3 being the next one.
_REPORT_DESCRIPTOR = MAX_OPEN_FILES - 1
_CHANNEL_DESCRIPTOR = MAX_OPEN_FILES - 2
# The kernel kills at the hard limit a program that shrugs off SIGXCPU at the soft one.
_HARD_CPU_EXTRA_SECONDS = 1


@dataclass(frozen=True)
class Descriptors:
    """The child's ends of the pipes."""

    stdout: int
    stderr: int
    report: int
    channel: int = -1
    """Sessions: where cells come from."""


def run_child(job: Job, folder: str, descriptors: Descriptors, plan: isolation.Plan, user: int | None) -> NoReturn:
    """Runs the program in the calling, freshly forked process. Never returns; never runs the caller's clean-up."""
    try:
        enter(job, folder, descriptors, plan, user)
        main_process = os.getpid()
        module = fresh_main()
        module.__dict__["__file__"] = PROGRAM_NAME
        ending = run_source(job.code, PROGRAM_NAME, module.__dict__)
        _finish_interpreter()
        if os.getpid() == main_process:  # a fork that the program made falls through to here too
            send_report(_REPORT_DESCRIPTOR, ending)
        os._exit(ending.exit_code)
    except BaseException as error:  # the sandbox's own fault, or a program that broke the runner; never a traceback
        with contextlib.suppress(BaseException):
            os.write(_REPORT_DESCRIPTOR, json.dumps({"broken": f"{type(error).__name__}: {error}"}).encode())
    finally:
        os._exit(70)


def enter(job: Job, folder: str, descriptors: Descriptors, plan: isolation.Plan, user: int | None) -> Descriptors:
    """Turns the forked process into a clean, limited world: descriptors, session, limits, isolation, streams.

    Returns:
        The descriptors as they are numbered from now on.
    """
    os.setsid()
    session = descriptors.channel >= 0
    _arrange_descriptors(descriptors)
    os.chdir(folder)
    _default_signals()
    _set_limits(job, user, session)
    isolation.enter_child(plan, user)
    _clean_interpreter(folder)
    give_stdin(job.stdin)
    _seed(job)
    return Descriptors(1, 2, _REPORT_DESCRIPTOR, _CHANNEL_DESCRIPTOR if session else -1)


def send_report(descriptor: int, ending: Ending) -> None:
    """Writes how the main code ended, as one JSON object."""
    content = (
        json.dumps(
            {
                "end": ending.kind,
                "value": ending.value,
                "traceback": ending.traceback,
                "exit_code": ending.exit_code,
            }
        ).encode()
        + b"\n"
    )
    done = 0
    while done < len(content):
        done += os.write(descriptor, content[done:])


def give_stdin(content: bytes) -> None:
    """Standard input for a program: this content, then its end."""
    if content:
        # A file in memory: the program reads to its end whatever its size, and nobody has to feed it.
        source = os.memfd_create("stdin")
        view = memoryview(content)
        while view:
            view = view[os.write(source, view) :]
        os.lseek(source, 0, os.SEEK_SET)
    else:
        source = os.open(os.devnull, os.O_RDONLY)
    os.dup2(source, 0)
    os.close(source)
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, "r", closefd=False)), "utf-8", "surrogateescape")
    sys.__stdin__ = sys.stdin  # type: ignore[misc]  # final in the stubs, not at run time


def _arrange_descriptors(descriptors: Descriptors) -> None:
    # First to their high numbers, out of the way of 0-2, whatever numbers the slot's pipes got.
    os.dup2(descriptors.report, _REPORT_DESCRIPTOR, inheritable=False)
    lowest = _REPORT_DESCRIPTOR
    if descriptors.channel >= 0:
        os.dup2(descriptors.channel, _CHANNEL_DESCRIPTOR, inheritable=False)
        lowest = _CHANNEL_DESCRIPTOR
    os.dup2(descriptors.stdout, 1)
    os.dup2(descriptors.stderr, 2)
    os.closerange(3, lowest)
    os.closerange(_REPORT_DESCRIPTOR + 1, 65536)


def _default_signals() -> None:
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP, signal.SIGXCPU, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _set_limits(job: Job, user: int | None, session: bool) -> None:
    with open("/proc/self/statm", "rb") as file:
        mapped = int(file.read().split()[0]) * resource.getpagesize()
    cpu = max(1, int(job.limits.cpu_seconds + 0.999))
    wanted = [
        # On top of what the warmed interpreter has mapped already, so that a limit means the same in every tier.
        (resource.RLIMIT_AS, mapped + job.limits.memory_bytes, 0),
        (resource.RLIMIT_FSIZE, MAX_FILE_BYTES, 0),
        (resource.RLIMIT_NOFILE, MAX_OPEN_FILES, 0),
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_MEMLOCK, 65536, 0),
    ]
    if not session:  # a session's cells each get their own
        wanted.append((resource.RLIMIT_CPU, cpu, _HARD_CPU_EXTRA_SECONDS))
    # Counted by user id: where programs have the service's, on top of everything that runs now. Root is not counted.
    others = 0 if user is not None else _tasks_of_the_machine()
    wanted.append((resource.RLIMIT_NPROC, others + MAX_PROCESSES, 0))
    for kind, soft, extra in wanted:
        top = resource.getrlimit(kind)[1]
        hard = soft + extra if top == resource.RLIM_INFINITY else min(soft + extra, top)
        resource.setrlimit(kind, (min(soft, hard), hard))


def _tasks_of_the_machine() -> int:
    """Processes and threads of all users; the quickest number that is at least the user's own."""
    with open("/proc/loadavg", "rb") as file:
        return int(file.read().split()[3].split(b"/")[1])


def _clean_interpreter(folder: str) -> None:
    """Streams, environment and module state of a just started interpreter."""
    # Unbuffered as under `python -u`: what was printed before a kill is in the pipe, not in lost memory.
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), "utf-8", "strict", write_through=True)
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), "utf-8", "backslashreplace", write_through=True)
    sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr  # type: ignore[misc]  # final in the stubs, not at run time
    os.environ.update(HOME=folder, TMPDIR=folder, PWD=folder)
    if "tempfile" in sys.modules:
        sys.modules["tempfile"].tempdir = None  # type: ignore[attr-defined]  # a module found by name
    sys.argv = [PROGRAM_NAME]
    sys.path[0:1] = [folder]
    atexit._clear()
    gc.enable()


def _seed(job: Job) -> None:
    if job.seed is None:
        random.seed()
        material = os.urandom(4)
    else:
        # Keyed by the program, so that the same program gives the same numbers and different ones do not.
        digest = hashlib.sha256(f"{job.seed}\0{job.code}\0".encode("utf-8", "surrogatepass") + job.stdin).digest()
        random.seed(digest)
        material = digest[:4]
    numpy_random: Any = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed(int.from_bytes(material, "little"))


def _finish_interpreter() -> None:
    """What the interpreter does after the main code: wait for threads, run atexit functions, flush."""
    with contextlib.suppress(BaseException):
        threading._shutdown()  # type: ignore[attr-defined]  # what the interpreter calls at its own end
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
