"""Finding out what isolation works on this machine: every primitive is tried in a throw-away process."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from typing import NoReturn

from rstar_sandbox import _cgroups, _landlock, _linux, _seccomp
from rstar_sandbox._namespaces import PidNamespace
from rstar_sandbox.isolation import Confinement, Plan, enter_child, enter_slot, enter_slot_namespaces, user_of_slot
from rstar_sandbox.levels import AUTO, FULL, OFF, USER
from rstar_sandbox.runtime import runtime_paths

__all__ = ["probe"]

_TRY_SECONDS = 20
_SCRATCH_BYTES, _SCRATCH_FILES = 1 << 20, 64


def probe(level: str = AUTO) -> Plan:
    """Tries each primitive and plans with those that work.

    Args:
        level: the level to plan for; "auto": the highest that works.
    """
    if level == OFF:
        return Plan().limited_to(OFF)
    root = os.geteuid() == 0
    plan = Plan(
        system_call_filter=_works(_try_filter),
        landlock=_works(_try_landlock),
        confined_signals=_landlock.available_abi() >= _landlock.SIGNAL_ABI and _works(_try_confined_signals),
        drop_capabilities=_works(_linux.drop_capabilities),
    )
    if level in (AUTO, FULL, USER):
        plan = _with_namespaces(plan, root, user_first=level == USER)
    if not plan.namespaces:
        plan = replace(plan, own_user=root and _works(_try_own_user))
    plan = replace(plan, level=plan.earned_level())
    return plan if level == AUTO else plan.limited_to(level)


def _with_namespaces(plan: Plan, root: bool, user_first: bool) -> Plan:
    candidates = [replace(plan, namespaces=True, user_namespace=True)]
    if root:
        plain = replace(plan, namespaces=True, own_user=True, control_groups=_works(_cgroups.probe))
        candidates.insert(len(candidates) if user_first else 0, plain)
        candidates.append(replace(plain, own_user=False))
    return next((candidate for candidate in candidates if _slot_works(candidate)), plan)


def _slot_works(plan: Plan) -> bool:
    """Whether a slot of this plan can be made, and a call in it sees what it should."""
    with tempfile.TemporaryDirectory() as folder:
        return _works(lambda: _try_slot(plan, folder))


def _try_slot(plan: Plan, folder: str) -> None:
    enter_slot_namespaces(plan)
    slot = os.fork()
    if slot == 0:
        _exit_with(lambda: _be_slot(plan, folder))
    if os.waitpid(slot, 0)[1] != 0:
        raise OSError("no slot can be made")


def _be_slot(plan: Plan, folder: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    user = user_of_slot(plan, os.getpid(), 1)
    confinement = enter_slot(plan, folder, user, _SCRATCH_BYTES, _SCRATCH_FILES)
    namespace = PidNamespace()
    for _ in range(2):
        pid, init = namespace.fork()
        if pid == 0:
            _exit_with(lambda: _be_program(plan, user, confinement))
        status = os.waitpid(pid, 0)[1]
        namespace.end(init)
        if status != 0:
            raise OSError("a program in the slot does not see what it should")


def _be_program(plan: Plan, user: int | None, confinement: Confinement) -> None:
    enter_child(plan, user, confinement)
    os.chdir(confinement.home)
    with open("file", "w") as file:
        file.write("x")
    os.unlink("file")
    if os.getpid() != 2 or os.path.exists("/etc/shadow") or not os.access(sys.executable, os.X_OK):
        raise OSError("not a world of its own")


def _try_landlock() -> None:
    with tempfile.TemporaryDirectory() as outside, tempfile.TemporaryDirectory() as inside:
        hidden = os.path.join(outside, "hidden")
        with open(hidden, "w"):
            pass
        _linux.set_no_new_privileges()
        pid = os.fork()
        if pid == 0:
            _exit_with(lambda: _confined_to(inside, outside, hidden))
        if os.waitpid(pid, 0)[1] != 0:
            raise OSError("files are not confined")


def _confined_to(inside: str, outside: str, hidden: str) -> None:
    _landlock.restrict(_landlock.prepare((inside,), runtime_paths()))
    with open(os.path.join(inside, "file"), "w"):
        pass
    os.unlink(os.path.join(inside, "file"))
    for forbidden in (lambda: os.mkdir(os.path.join(outside, "folder")), lambda: os.open(hidden, os.O_RDONLY)):
        with contextlib.suppress(PermissionError):
            forbidden()
            raise OSError("not confined")


def _try_confined_signals() -> None:
    _linux.set_no_new_privileges()
    _landlock.restrict(_landlock.prepare(()))
    try:
        os.kill(os.getppid(), 0)
    except PermissionError:
        return
    raise OSError("signals are not confined")


def _try_filter() -> None:
    import socket

    _linux.set_no_new_privileges()
    _seccomp.deny_system_calls()
    os.getpid()
    try:
        socket.socket().close()
    except PermissionError:
        return
    raise OSError("the filter does not filter")


def _try_own_user() -> None:
    """Whether another user can read the Python runtime: a virtual environment in a private home is out of its reach."""
    user = user_of_slot(Plan(own_user=True), os.getpid(), 1)
    assert user is not None
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o777)  # noqa: S103 - for a moment, to see whether what the user leaves can be removed
        pid = os.fork()
        if pid == 0:
            _exit_with(lambda: _be_user(user, folder))
        if os.waitpid(pid, 0)[1] != 0:
            raise OSError("another user cannot run Python here")


def _be_user(user: int, folder: str) -> None:
    os.setgroups([])
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    os.mkdir(os.path.join(folder, "of-the-user"), 0o700)
    for path in {sys.prefix, sys.base_prefix, *(entry for entry in sys.path if os.path.isabs(entry))}:
        if os.path.lexists(path):
            os.stat(os.path.join(path, "."))
    os.listdir(os.path.dirname(os.__file__))
    if not os.access(sys.executable, os.X_OK):
        raise OSError("the interpreter is out of reach")


def _works(attempt: Callable[[], None]) -> bool:
    """Whether the attempt succeeds, seen in a child of its own."""
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(_TRY_SECONDS)
        _exit_with(attempt)
    return os.waitpid(pid, 0)[1] == 0


def _exit_with(attempt: Callable[[], None]) -> NoReturn:
    code = 1
    try:
        attempt()
        code = 0
    except BaseException as error:
        if os.environ.get("RSTAR_SANDBOX_PROBE"):  # for whoever wonders why a level is out of reach
            os.write(2, f"probe: {type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(code)
