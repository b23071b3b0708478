"""The zygote: imports the symbolic libraries once, then forks a fresh worker whenever the front asks for one.

Started by exec, single-threaded, so that forking is safe. Usage: python -m rstar_reward.workers._zygote
CONTROL_FD PARENT_PID MEMORY_BYTES VERIFIER...
"""

from __future__ import annotations

import array
import contextlib
import gc
import os
import select
import signal
import socket
import sys

from rstar_reward.verifiers import load_verifier
from rstar_reward.workers import _process, _wire, _worker


def main(arguments: list[str]) -> None:
    """Serves fork requests until the front is gone."""
    control_fd, parent_pid, memory_bytes = (int(argument) for argument in arguments[:3])
    _process.die_with_parent(parent_pid)
    _process.silence(0, 1)
    # Ctrl-C is the front's affair.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=control_fd)
    for name in arguments[3:]:
        with contextlib.suppress(Exception):  # a broken plug-in fails its own jobs, not the others'
            load_verifier(name).warm_up()
    gc.collect()
    gc.freeze()
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    _wire.send(control, {"ready": True})
    while True:
        readable, _, _ = select.select([control.fileno(), wake_read], [], [])
        if wake_read in readable:
            os.read(wake_read, 4096)
            _report_exits(control)
        if control.fileno() in readable:
            connection = _receive_socket(control)
            if connection is None:
                return
            with connection:
                if os.fork() == 0:
                    _become_worker(control, connection, (wake_read, wake_write), memory_bytes)


def _become_worker(control: socket.socket, connection: socket.socket, wake: tuple[int, int], memory_bytes: int) -> None:
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        zygote_pid = os.getppid()
        control.close()
        for descriptor in wake:
            os.close(descriptor)
        _worker.serve_jobs(connection, zygote_pid, memory_bytes)
    finally:
        os._exit(1)


def _receive_socket(control: socket.socket) -> socket.socket | None:
    descriptors = array.array("i")
    message, ancillary, _, _ = control.recvmsg(1, socket.CMSG_SPACE(descriptors.itemsize))
    if not message:
        return None
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(data[: len(data) - len(data) % descriptors.itemsize])
    return socket.socket(fileno=descriptors[0]) if descriptors else None


def _report_exits(control: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        with contextlib.suppress(OSError):
            _wire.send(control, {"exited": pid, "signal": number})


if __name__ == "__main__":
    main(sys.argv[1:])
