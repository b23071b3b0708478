"""Isolation: what this machine allows, what a plan uses of it, and how slots and children enter it.

Every primitive is tried in a throw-away process before it is relied on. The level that is reported is the one whose
whole list of primitives is in force; more may be active than the level's name promises, never less.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass

from rstar_sandbox import _cgroups, _landlock, _linux

__all__ = ["LIMITS", "OFF", "Plan", "enter_child", "enter_slot", "enter_slot_namespaces", "probe", "user_of_slot"]

LIMITS = "limits"
"""Resource limits, watchdog, process group and sweep; nothing keeps a program from reading the machine's files."""
OFF = "off"

_FIRST_USER = 64000
_SLOT_NAMESPACES = _linux.CLONE_NEWPID | _linux.CLONE_NEWIPC | _linux.CLONE_NEWUTS


@dataclass(frozen=True)
class Plan:
    """Which primitives slots and children use."""

    level: str = LIMITS
    pid_namespace: bool = False
    """Each slot is PID 1 of its own PID, IPC and UTS namespaces: one kill(-1) leaves nothing behind."""
    net_namespace: bool = False
    """Each slot has a network namespace without interfaces."""
    system_call_filter: bool = False
    """seccomp deny-list: no sockets, no ptrace, no namespaces, no mounts."""
    own_user: bool = False
    """Each slot's children run under their own user id."""
    drop_capabilities: bool = False
    task_groups: bool = False
    """Each slot has a control group that bounds its processes and threads."""
    confined_writes: bool = False
    """Landlock: a slot and its programs write below the slot's own folder only."""
    confined_signals: bool = False
    """Landlock scopes: a program signals only processes of its own call."""

    @property
    def shields_supervisor(self) -> bool:
        """True when a program cannot signal its slot, so that a lost slot is never the program's doing."""
        return self.pid_namespace or self.confined_signals

    def to_dict(self) -> dict[str, object]:
        """Plain values, for `doctor` and the wire."""
        return asdict(self)


def probe() -> Plan:
    """Tries each primitive in a process of its own and plans with those that work."""
    root = os.geteuid() == 0
    pid_namespace = root and _works(lambda: _try_namespaces(_SLOT_NAMESPACES))
    return Plan(
        pid_namespace=pid_namespace,
        net_namespace=pid_namespace and _works(lambda: _try_namespaces(_SLOT_NAMESPACES | _linux.CLONE_NEWNET)),
        system_call_filter=_works(_try_filter),
        own_user=root and _works(_try_own_user),
        drop_capabilities=root and _works(_linux.drop_capabilities),
        task_groups=root and _works(_cgroups.probe),
        confined_writes=_works(_try_confined_writes),
        confined_signals=_works(_try_confined_signals),
    )


def user_of_slot(plan: Plan, slot: int) -> int | None:
    """The user id of a slot's children; None: the service's own."""
    return _FIRST_USER + slot % 1000 if plan.own_user else None


def enter_slot_namespaces(plan: Plan) -> None:
    """Moves the calling process's next child into the slot's namespaces."""
    if plan.pid_namespace:
        _linux.unshare(_SLOT_NAMESPACES | (_linux.CLONE_NEWNET if plan.net_namespace else 0))


def enter_slot(plan: Plan, folder: str) -> None:
    """What is set up once for a slot and inherited by all its children; `folder` is the slot's own.

    Raises:
        OSError: something that worked when it was probed does not now.
    """
    # Where the kernel has to choose, programs go before the services of this machine.
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")
    _linux.set_no_new_privileges()
    if plan.drop_capabilities:
        _linux.drop_capability_bounds()
    if plan.confined_writes:
        _landlock.confine(folder)


def enter_child(plan: Plan, user: int | None) -> None:
    """Gives up every right that a program must not have; the calling process is the child of a slot.

    Raises:
        OSError: something that worked when it was probed does not now; the program must not run.
    """
    if user is not None:
        _become(user)
    elif plan.drop_capabilities:
        _linux.drop_capabilities()
    _linux.set_parent_death_signal(signal.SIGKILL)
    if plan.confined_signals:
        _landlock.confine_signals()
    if plan.system_call_filter:
        _linux.deny_system_calls()


def _become(user: int) -> None:
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)  # drops the capabilities with it


def _try_namespaces(flags: int) -> None:
    _linux.unshare(flags)
    pid = os.fork()
    if pid == 0:
        os._exit(0 if os.getpid() == 1 else 1)
    if os.waitpid(pid, 0)[1] != 0:
        raise OSError("no process can be made in the namespace")


def _try_confined_writes() -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as outside, tempfile.TemporaryDirectory() as inside:
        _linux.set_no_new_privileges()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                _landlock.confine(inside)
                with open(os.path.join(inside, "file"), "w"):
                    pass
                os.mkdir(os.path.join(outside, "folder"))
            except PermissionError:
                code = 0
            finally:
                os._exit(code)
        if os.waitpid(pid, 0)[1] != 0:
            raise OSError("writes are not confined")


def _try_confined_signals() -> None:
    _linux.set_no_new_privileges()
    _landlock.confine_signals()
    try:
        os.kill(os.getppid(), 0)
    except PermissionError:
        return
    raise OSError("signals are not confined")


def _try_filter() -> None:
    import socket

    _linux.set_no_new_privileges()
    _linux.deny_system_calls()
    os.getpid()
    try:
        socket.socket().close()
    except PermissionError:
        return
    raise OSError("the filter does not filter")


def _try_own_user() -> None:
    """Whether another user can read the Python runtime: a virtual environment in a private home is out of its reach."""
    _become(_FIRST_USER)
    for folder in {sys.prefix, sys.base_prefix, *(entry for entry in sys.path if os.path.isabs(entry))}:
        if os.path.lexists(folder):
            os.stat(os.path.join(folder, "."))
    os.listdir(os.path.dirname(os.__file__))
    if not os.access(sys.executable, os.X_OK):
        raise OSError("the interpreter is out of reach")
    import rstar_sandbox

    with open(rstar_sandbox.__file__, "rb"):
        pass


def _works(attempt: Callable[[], None]) -> bool:
    """Whether the attempt succeeds, seen in a child of its own."""
    pid = os.fork()
    if pid == 0:
        try:
            attempt()
            os._exit(0)
        except BaseException:
            os._exit(1)
        finally:
            os._exit(1)
    return os.waitpid(pid, 0)[1] == 0
