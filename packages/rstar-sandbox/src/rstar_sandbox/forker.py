"""A slot's forker: a process that does nothing but fork the children of calls and see them off.

What a process writes to after a fork has to be copied, page by page, by it or by its child. The slot runs Python for
each call and so writes to hundreds of pages; the forker is a loop in C that writes to hardly any, so that its memory
stays as it was when it started, in large pages, and forking it copies little. It is forked from the slot when the slot
is set up, and inherits namespaces, root, groups, Landlock and seccomp from it.
"""

from __future__ import annotations

import _random  # the C part of `random`
import contextlib
import functools
import marshal
import os
import random
import signal
import socket
import struct
import sys
import threading
from typing import Any, NoReturn

from rstar_sandbox import hot, isolation, processes
from rstar_sandbox._cgroups import SlotGroup
from rstar_sandbox._memory import collapse
from rstar_sandbox._namespaces import PidNamespace
from rstar_sandbox.child import be_prepared_child
from rstar_sandbox.families import Ended, Forked
from rstar_sandbox.forkable import foreign_fork_hooks
from rstar_sandbox.interpreter import interruptible

__all__ = ["TASKS_OF_A_SLOT", "ForkerFamily"]

# As `_hot.c` has them.
_MADE = struct.Struct("=5q")
_ENDED = struct.Struct("=8q")
_ORDER = struct.Struct("=qqdqq")
TASKS_OF_A_SLOT = 3
"""The slot itself, its forker, and the init of the call's namespace: what is left when a program is gone."""


class ForkerFamily:
    """A `Family` whose children are forked by a forker, each in a PID namespace of its own.

    Args:
        group: of the slot.
        rights: what a child enters, see `rights_of_child`.
        plan: the isolation of the slot.
        mapped: address space of the calling process, bytes.
    """

    def __init__(self, group: SlotGroup | None, rights: tuple[Any, ...], plan: isolation.Plan, mapped: int) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.inherited_bytes = processes.own_resident_bytes()
        namespace, tasks = PidNamespace(), group.tasks_descriptor if group is not None else -1
        self._forker = os.fork()
        if self._forker == 0:
            _be_forker(theirs.fileno(), namespace, tasks, rights, plan, mapped)
        theirs.close()
        os.close(namespace.own)
        self.descriptor = self._control.fileno()
        self._ordered = False
        self._init = self._left = 0

    def members(self) -> list[int]:
        """See `Family`."""
        return processes.all_but(os.getpid(), self._forker, self._init)

    def order(self) -> None:
        """See `Family`."""
        self._control.send(b"f")
        self._ordered = True

    def is_made(self) -> bool:
        """See `Family`."""
        try:
            return bool(self._control.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except BlockingIOError:
            return False

    def take(self) -> Forked:
        """See `Family`."""
        content, ends, _, _ = socket.recv_fds(self._control, _MADE.size, 3)
        self._ordered = False
        if len(content) != _MADE.size:
            raise OSError("the forker is gone")
        error, pid, self._init, wall, cpu = _MADE.unpack(content)
        if error:
            raise OSError(error, f"fork: {os.strerror(error)}")
        return Forked(pid, (ends[0], ends[1], ends[2]), wall / 1e9, cpu / 1e9)

    def start(self, channel: socket.socket, frame: dict[str, Any]) -> None:
        """See `Family`."""
        if frame["kind"] != "job" or frame["seed"] is not None:
            content = marshal.dumps(frame)
            channel.sendall(_ORDER.pack(0, 0, 0.0, 0, len(content)) + content)
            return
        limits, stdin, code = frame["limits"], frame["stdin"], frame["code"].encode("utf-8", "surrogatepass")
        header = _ORDER.pack(1, limits["memory_bytes"], limits["cpu_seconds"], len(stdin), len(code))
        channel.sendall(header + stdin + code)

    def reap(self) -> Ended | None:
        """See `Family`."""
        try:
            return self._ended(socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None

    def end(self) -> int:
        """See `Family`."""
        if self._ordered:
            for descriptor in self.take().ends:
                os.close(descriptor)
        if self._init:
            # Of the ids that the slot sees, those of its call are not given anew before the next order.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._init, signal.SIGKILL)
            self._ended(0)
        left, self._left = self._left, 0
        return left

    def _ended(self, flags: int) -> Ended:
        content = self._control.recv(_ENDED.size, flags)
        if len(content) != _ENDED.size:
            raise OSError("the forker is gone")
        status, user, system, peak, self._left, at, wall, cpu = _ENDED.unpack(content)
        self._init = 0
        return Ended(status, (user + system) / 1e6, peak * 1024, at / 1e9, wall / 1e9, cpu / 1e9)


def _be_forker(
    control: int, namespace: PidNamespace, tasks: int, rights: tuple[Any, ...], plan: isolation.Plan, mapped: int
) -> NoReturn:
    """What the forker, and later each child of it, does for the rest of its life."""
    try:
        before = 2
        for descriptor in sorted({control, namespace.own, *((tasks,) if tasks >= 0 else ())}):
            os.closerange(before + 1, descriptor)
            before = descriptor
        os.closerange(before + 1, 65536)
        hooks = foreign_fork_hooks()
        interruptible()
        # Each child is process 2 of its namespace, see `PidNamespace`.
        threading.main_thread()._native_id = 2  # type: ignore[attr-defined]  # as `threading` keeps it
        random.seed()
        # The function of the C part: that of Python does no more for a generator that was seeded just now.
        seed = functools.partial(_random.Random.seed, random._inst)
        assert hot.EXTENSION is not None
        serve = functools.partial(
            hot.EXTENSION.serve_forks,
            control,
            namespace.stack_top,
            namespace.own,
            tasks,
            TASKS_OF_A_SLOT,
            hot.rights(*rights),
            mapped if plan.resource_limits else -1,
            seed,
            hooks,
            "numpy.random" not in sys.modules,
        )
        collapse()
        be_prepared_child(serve, plan, mapped)
    finally:
        os._exit(70)
