"""The zygote: one warmed, single-threaded process that forks slots. `python -m rstar_sandbox.zygote FD FOLDER`.

It is started by exec before the service initialises gRPC, so no thread and no descriptor of the service is in it.
There is one for each tier (see `tiers.py`). It talks to the service over a socket pair (SOCK_SEQPACKET, JSON):
`{"slot": n}` with the slot's end of a connection attached makes a slot; `{"kill": n}` kills one. It says
`{"ready": ...}` once, and `{"gone": n, "status": s}` when a slot ended. When the service is gone it ends, and
everything below it too.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import time
from types import FrameType
from typing import Any, NoReturn

from rstar_sandbox import _linux, isolation
from rstar_sandbox._cgroups import ControlGroups, SlotGroup, join
from rstar_sandbox.folders import make_folder, remove_stale_folders
from rstar_sandbox.forkable import make_forkable
from rstar_sandbox.forker import TASKS_OF_A_SLOT
from rstar_sandbox.probe import probe
from rstar_sandbox.slot import Slot
from rstar_sandbox.slot_loop import slot_main
from rstar_sandbox.watch import MAX_PROCESSES

__all__ = ["main"]


class Zygote:
    """Forks slots on request and reports their ends.

    Args:
        control: socket to the service.
        folder: of this zygote; each slot gets one below.
        plan: the isolation of slots.
        settings: `tier`, `scratch_bytes`, `scratch_files`.
    """

    def __init__(self, control: socket.socket, folder: str, plan: isolation.Plan, settings: dict[str, Any]) -> None:
        self._control, self._folder, self._plan, self._settings = control, folder, plan, settings
        self._pid = os.getpid()
        self._slots: dict[int, int] = {}
        self._groups = ControlGroups(os.path.basename(folder)) if plan.control_groups else None

    def run(self) -> None:
        """Serves until the service closes its end."""
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(wake_read, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == wake_read:
                    with contextlib.suppress(BlockingIOError):
                        os.read(wake_read, 4096)
                elif not self._serve_request():
                    return
            self._reap()

    def _serve_request(self) -> bool:
        content, descriptors, _, _ = socket.recv_fds(self._control, 4096, 1)
        if not content:
            return False
        request = json.loads(content)
        if "slot" in request:
            self._make_slot(request["slot"], socket.socket(fileno=descriptors[0]))
        elif "kill" in request:
            for pid, number in self._slots.items():
                if number == request["kill"]:
                    os.kill(pid, signal.SIGKILL)
        return True

    def _make_slot(self, number: int, connection: socket.socket) -> None:
        """Forks a slot by way of a short-lived process.

        A process can make a PID namespace for its children only once, so each slot needs a maker of its own; the
        slot becomes the zygote's child when the maker ends, because the zygote is a child subreaper.
        """
        told_read, told_write = os.pipe2(os.O_CLOEXEC)
        go_read, go_write = os.pipe2(os.O_CLOEXEC)
        maker = os.fork()
        if maker == 0:
            try:
                group = None
                if self._groups is not None:
                    made = self._groups.make(number, MAX_PROCESSES + TASKS_OF_A_SLOT)
                    group = SlotGroup(made)
                    join(made)
                isolation.enter_slot_namespaces(self._plan)
                pid = os.fork()
                if pid == 0:
                    os.close(told_write)  # so that the zygote sees the end of a maker that is killed just now
                    self._become_slot(number, connection, group, go_read, go_write)
                os.write(told_write, str(pid).encode())
            finally:
                os._exit(0)
        os.close(told_write)
        os.close(go_read)
        os.waitpid(maker, 0)
        told = os.read(told_read, 32)
        os.close(told_read)
        connection.close()
        if told:
            self._slots[int(told)] = number
            with contextlib.suppress(BrokenPipeError):  # a slot that died at once is reaped like any other
                os.write(go_write, b"g")
        else:
            self._tell({"gone": number, "status": -1})
        os.close(go_write)

    def _become_slot(
        self, number: int, connection: socket.socket, group: SlotGroup | None, go_read: int, go_write: int
    ) -> None:
        try:
            os.close(go_write)
            # Only now is the zygote this process's parent, so that the death signal below is about the zygote.
            if not os.read(go_read, 1):
                return  # the zygote does not know of this slot
            _linux.set_parent_death_signal(signal.SIGKILL)
            _linux.set_child_subreaper()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            _close_all_but({connection.fileno(), *(group.descriptors() if group else ())})
            folder = os.path.join(self._folder, str(number))
            os.mkdir(folder, 0o711)
            settings = self._settings
            slot = Slot(
                number,
                self._pid,
                folder,
                self._plan,
                connection,
                group,
                settings["tier"],
                settings["scratch_bytes"],
                settings["scratch_files"],
            )
            slot_main(slot)
        except BaseException as error:
            os.write(2, f"sandbox slot {number}: {type(error).__name__}: {error}\n".encode())
        finally:
            os._exit(1)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            number = self._slots.pop(pid, None)
            if number is not None:
                shutil.rmtree(os.path.join(self._folder, str(number)), ignore_errors=True)
                if self._groups is not None:
                    self._groups.remove(number)
                self._tell({"gone": number, "status": status})

    def _tell(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._control.send(json.dumps(message).encode())


def main(arguments: list[str]) -> None:
    """Warms up, says what there is, and serves."""
    control, settings = socket.socket(fileno=int(arguments[0])), json.loads(arguments[1])
    os.environ.pop("LD_BIND_NOW", None)  # for this process, not for what programs start
    parent = settings["parent"]
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal is for the service, which ends us in order
    # SIGTERM, not SIGKILL: the folder has to be removed.
    _linux.set_parent_death_signal(signal.SIGTERM)
    if os.getppid() != parent:
        return
    _linux.set_child_subreaper()
    for stale in remove_stale_folders(settings["folder"]):
        ControlGroups(os.path.basename(stale)).remove_all()
    folder, lock = make_folder(settings["folder"])
    try:
        started = time.monotonic()
        plan = isolation.Plan(**settings["plan"]) if settings["plan"] else probe(settings["level"])
        warmed = make_forkable(settings["warm"])
        ready = {"ready": True, "warmed": warmed, "plan": plan.to_dict(), "seconds": time.monotonic() - started}
        control.send(json.dumps(ready).encode())
        Zygote(control, folder, plan, settings).run()
    except (BrokenPipeError, ConnectionResetError):
        pass
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        from rstar_sandbox import processes

        processes.kill_all()
        ControlGroups(os.path.basename(folder)).remove_all()
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _close_all_but(kept: set[int]) -> None:
    before = 2
    for descriptor in sorted(kept):
        os.closerange(before + 1, descriptor)
        before = descriptor
    os.closerange(before + 1, 65536)


def _end(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(0)


if __name__ == "__main__":
    # The classes above must be those that a slot's modules refer to, not a second copy under the name __main__.
    importlib.import_module("rstar_sandbox.zygote").main(sys.argv[1:])
