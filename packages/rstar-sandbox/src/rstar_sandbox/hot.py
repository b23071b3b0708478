"""What happens around each fork: by the C extension where it was built, else the same in Python.

Python code that runs right after a fork costs more than its time: every object it touches is a page that the kernel
has to copy. The environment variable RSTAR_SANDBOX_PURE_PYTHON chooses Python in any case.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
from typing import TYPE_CHECKING, Any

from rstar_sandbox import _landlock, _linux

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["EXTENSION", "IMPLEMENTATION", "enter", "give_up_rights", "make_immortal", "rights"]


_INTERFACE = 4


def _load() -> ModuleType | None:
    if os.environ.get("RSTAR_SANDBOX_PURE_PYTHON"):
        return None
    try:
        from rstar_sandbox import _hot
    except ImportError:  # no compiler where this was installed
        return None
    return _hot if getattr(_hot, "INTERFACE", 0) == _INTERFACE else None


EXTENSION: Any = _load()
IMPLEMENTATION = "Python" if EXTENSION is None else "C extension"


def enter(
    ends: tuple[int, int, int],
    channel: int,
    home: str,
    limits: tuple[tuple[int, int], ...],
    user: int | None,
    drop_capabilities: bool,
    die_with_parent: bool,
    ruleset: int,
) -> None:
    """Turns a freshly forked process into one that may run a program.

    Args:
        ends: descriptors that become standard output, standard error and `channel`; all others are closed.
        channel: the number of the third.
        home: working directory.
        limits: resource limits, hard and soft alike, by kind.
        user: id to take on; None: stay.
        drop_capabilities: where the user stays.
        die_with_parent: be killed when the parent ends.
        ruleset: Landlock ruleset to enter; -1: none.

    Raises:
        OSError: something that worked when it was probed does not now; the program must not run.
    """
    if EXTENSION is not None:
        EXTENSION.enter(*ends, rights(channel, home, limits, user, drop_capabilities, die_with_parent, ruleset))
        return
    os.setsid()
    _arrange_descriptors(*ends, channel, ruleset)
    os.chdir(home)
    for kind, limit in limits:
        top = resource.getrlimit(kind)[1]
        usable = limit if top == resource.RLIM_INFINITY else min(limit, top)
        resource.setrlimit(kind, (usable, usable))
    give_up_rights(user, drop_capabilities, die_with_parent, ruleset)


def rights(
    channel: int,
    home: str,
    limits: tuple[tuple[int, int], ...],
    user: int | None,
    drop_capabilities: bool,
    die_with_parent: bool,
    ruleset: int,
) -> tuple[Any, ...]:
    """The arguments of `enter` as the extension takes them."""
    return channel, home, limits, -1 if user is None else user, drop_capabilities, die_with_parent, ruleset


def give_up_rights(user: int | None, drop_capabilities: bool, die_with_parent: bool, ruleset: int) -> None:
    """The last part of `enter`: user, capabilities, Landlock."""
    if user is not None:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)  # drops the capabilities with it
    elif drop_capabilities:
        _linux.drop_capabilities()
    if die_with_parent:
        _linux.set_parent_death_signal(signal.SIGKILL)
    if ruleset >= 0:
        _landlock.restrict(ruleset)
        os.close(ruleset)
    _linux.set_dumpable(True)


def make_immortal() -> int:
    """Makes all that is alive now immortal: using it no longer writes to its reference count (PEP 683).

    A child that uses an object then copies no page for it. Such objects are never freed, which a process that only
    forks does not mind.

    Returns:
        How many objects were made so; 0 without the extension and before Python 3.12, where there are none.
    """
    if EXTENSION is None:
        return 0
    made: int = EXTENSION.make_immortal(gc.get_objects())
    return made


def _arrange_descriptors(out: int, err: int, end: int, channel: int, kept: int) -> None:
    os.dup2(end, channel, inheritable=False)
    os.dup2(out, 1)
    os.dup2(err, 2)
    before = 2
    for descriptor in sorted({channel, *((kept,) if kept >= 0 else ())}):
        os.closerange(before + 1, descriptor)
        before = descriptor
    os.closerange(before + 1, 65536)
