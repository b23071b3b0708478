"""The interpreter as a program expects to find it: streams, environment, module state of one that has just started.

Prepared once in a slot, before its children are forked, so that no call pays for it.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # the interpreter's own half of `signal`, without stubs
import atexit
import gc
import io
import os
import signal
import sys
import threading

from rstar_sandbox import hot

__all__ = [
    "PROGRAM_NAME",
    "default_signals",
    "finish_interpreter",
    "give_stdin",
    "interruptible",
    "prepare_interpreter",
]

PROGRAM_NAME = "main.py"


def prepare_interpreter(home: str, temporary: str) -> None:
    """Standard streams over the descriptors 0-2, environment, `sys.path`; the calling process prints no more.

    Args:
        home: working directory of programs.
        temporary: where `tempfile` makes files.
    """
    # Unbuffered as under `python -u`: what was printed before a kill is in the pipe, not in lost memory.
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), "utf-8", "strict", write_through=True)
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), "utf-8", "backslashreplace", write_through=True)
    sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr  # type: ignore[misc]  # final in the stubs, not at run time
    _fresh_stdin()
    os.environ.update(HOME=home, TMPDIR=temporary, PWD=home)
    if "tempfile" in sys.modules:
        sys.modules["tempfile"].tempdir = None  # type: ignore[attr-defined]  # a module found by name
    sys.argv = [PROGRAM_NAME]
    sys.path[0:1] = [home]
    atexit._clear()
    gc.collect()
    hot.make_immortal()
    gc.freeze()
    gc.disable()  # a collection in the slot would touch, and so copy, the pages that its children share


def give_stdin(content: bytes, *, again: bool = False) -> None:
    """Standard input for a program: this content, then its end.

    Args:
        content: what the program reads.
        again: an earlier program of this process may have read from the streams that were prepared.
    """
    if content or again:
        # A file: the program reads to its end whatever its size, and nobody has to feed it.
        source = _file_without_name() if content else os.open(os.devnull, os.O_RDONLY)
        view = memoryview(content)
        while view:
            view = view[os.write(source, view) :]
        if content:
            os.lseek(source, 0, os.SEEK_SET)
        os.dup2(source, 0)
        os.close(source)
    if again:
        _fresh_stdin()


def default_signals() -> None:
    """Dispositions of a just started interpreter, but for `SIGINT`, which `interruptible` sets."""
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP, signal.SIGXCPU, signal.SIGQUIT, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def interruptible() -> None:
    """`SIGINT` raises KeyboardInterrupt; only in a child, see `PidNamespace`."""
    # The plain function: that of `signal` makes enumeration members of what it returns.
    _signal.signal(_signal.SIGINT, _signal.default_int_handler)


def finish_interpreter() -> None:
    """What the interpreter does after the main code: wait for threads, run atexit functions, flush."""
    # Only what there is to do, and without context managers: this runs in every child.
    try:
        # As `threading.active_count`, which is four calls more.
        if len(threading._active) + len(threading._limbo) > 1 or getattr(threading, "_threading_atexits", True):  # type: ignore[attr-defined]
            threading._shutdown()  # type: ignore[attr-defined]  # what the interpreter calls at its own end
    except BaseException:  # noqa: S110 - the program's own, at its end
        pass
    try:  # noqa: SIM105 - as said
        atexit._run_exitfuncs()
    except BaseException:  # noqa: S110 - as above
        pass
    for stream in (sys.stdout, sys.stderr):
        try:  # noqa: SIM105 - as said
            stream.flush()
        except BaseException:  # noqa: S110 - as above
            pass


def _file_without_name() -> int:
    try:
        return os.memfd_create("stdin")
    except OSError:  # refused where nothing bounds such files
        return os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)


def _fresh_stdin() -> None:
    sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, "r", closefd=False)), "utf-8", "surrogateescape")
    sys.__stdin__ = sys.stdin  # type: ignore[misc]  # final in the stubs, not at run time
