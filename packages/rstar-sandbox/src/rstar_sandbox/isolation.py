"""Isolation: what this machine allows, what a plan uses of it, and how slots and children enter it.

Every primitive is tried in a throw-away process before it is relied on. The level that is reported is the one whose
whole list of primitives is in force; more may be active than the level's name promises, never less.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import asdict, dataclass, replace

from rstar_sandbox import _landlock, _linux, _mounts, _namespaces, _seccomp, hot
from rstar_sandbox.levels import CONTAINER, FULL, LIMITS, OFF, USER
from rstar_sandbox.runtime import runtime_paths

__all__ = ["Confinement", "Plan", "enter_child", "enter_slot", "enter_slot_namespaces", "user_of_slot"]

_SLOT_NAMESPACES = (
    _namespaces.NEW_PID
    | _namespaces.NEW_IPC
    | _namespaces.NEW_UTS
    | _namespaces.NEW_NET
    | _namespaces.NEW_MOUNT
)  # fmt: skip
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_SEMAPHORES = "/dev/shm"  # noqa: S108 - where the C library keeps them
# Users of slots: far from those of people and services, and not the same for two zygotes of one machine.
_WIDE_FIRST, _WIDE_SLOTS, _WIDE_PIDS = 1_000_000_000, 256, 4_194_304
_NARROW_FIRST, _NARROW_SLOTS, _NARROW_PIDS = 30_000, 64, 400
_SANDBOX_USER = 64000


@dataclass(frozen=True)
class Plan:
    """Which primitives slots and children use."""

    level: str = LIMITS
    namespaces: bool = False
    """Each slot has its own PID, mount, network, IPC and UTS namespaces and a root file system with nothing but the
    runtime and a scratch space; each call a PID namespace of its own below."""
    user_namespace: bool = False
    """Made inside a user namespace, where an ordinary user may."""
    own_user: bool = False
    """Each slot's children run under their own user id."""
    drop_capabilities: bool = False
    control_groups: bool = False
    """Each slot has a group that bounds memory and tasks of its call."""
    system_call_filter: bool = False
    """seccomp deny-list: no sockets, no ptrace, no namespaces, no mounts."""
    landlock: bool = False
    """Where there is no root of its own, Landlock confines reading and writing; else writing only."""
    confined_signals: bool = False
    """Landlock scopes: a program signals only processes of its own call."""
    resource_limits: bool = True

    @property
    def shields_supervisor(self) -> bool:
        """True when a program cannot signal its slot, so that a lost slot is never the program's doing."""
        return self.namespaces or self.confined_signals

    def earned_level(self) -> str:
        """The highest level whose whole list of primitives is here."""
        if self.level == OFF:
            return OFF
        if not (self.system_call_filter and self.landlock):
            return LIMITS
        if not self.namespaces:
            return CONTAINER
        return FULL if self.own_user and self.control_groups and not self.user_namespace else USER

    def limited_to(self, level: str) -> Plan:
        """This plan without what only levels above `level` have."""
        if level == FULL:
            return self
        plan = replace(self, control_groups=False)
        if level == USER:
            return replace(plan, level=plan.earned_level())
        plan = replace(plan, namespaces=False, user_namespace=False)
        if level == CONTAINER:
            return replace(plan, level=plan.earned_level())
        plan = replace(plan, system_call_filter=False, landlock=False, confined_signals=False)
        if level == LIMITS:
            return replace(plan, level=LIMITS)
        return Plan(level=OFF, resource_limits=False)

    def to_dict(self) -> dict[str, object]:
        """Plain values, for `doctor` and the wire."""
        return asdict(self)


@dataclass
class Confinement:
    """What a slot has entered, for its children and for cleaning up between them."""

    home: str
    """Working directory of programs."""
    scratch: tuple[str, ...]
    """Folders to be emptied after each call."""
    kept: dict[str, frozenset[str]]
    """Entries of scratch folders that are not a program's."""
    ruleset: int = -1
    """Landlock ruleset that children enter; -1: they inherited the slot's."""


def user_of_slot(plan: Plan, zygote: int, slot: int) -> int | None:
    """The user id of a slot's children; None: the service's own.

    Args:
        plan: whether slots have users of their own.
        zygote: its process id, which keeps two services of one machine apart.
        slot: its number.
    """
    if not plan.own_user:
        return None
    if _ids_are_wide():
        return _WIDE_FIRST + zygote % _WIDE_PIDS * _WIDE_SLOTS + slot % _WIDE_SLOTS
    return _NARROW_FIRST + zygote % _NARROW_PIDS * _NARROW_SLOTS + slot % _NARROW_SLOTS


def enter_slot_namespaces(plan: Plan) -> None:
    """Moves the calling process's next child into the slot's namespaces."""
    if not plan.namespaces:
        return
    user, group = os.geteuid(), os.getegid()
    _namespaces.unshare(_SLOT_NAMESPACES | (_namespaces.NEW_USER if plan.user_namespace else 0))
    if plan.user_namespace:
        _namespaces.map_own_user(_SANDBOX_USER, user, group)


def enter_slot(plan: Plan, folder: str, user: int | None, scratch_bytes: int, scratch_files: int) -> Confinement:
    """What is set up once for a slot and inherited by all its children.

    Args:
        plan: what to use.
        folder: an empty folder of the slot's own.
        user: of its children; None: the service's.
        scratch_bytes: quota of what programs write, where there is a root of its own.
        scratch_files: most files and folders there.

    Raises:
        OSError: something that worked when it was probed does not now.
    """
    _prefer_as_victims()
    if plan.namespaces:
        owner = user if user is not None else os.geteuid()
        kept = _mounts.build_root(
            folder, runtime_paths(), user=owner, scratch_bytes=scratch_bytes, scratch_files=scratch_files
        )
        confinement = Confinement(_mounts.HOME, _mounts.SCRATCH_FOLDERS, kept)
    else:
        confinement = _plain_folder(folder, user)
    if plan.level == OFF:
        return confinement
    _linux.set_no_new_privileges()
    if plan.drop_capabilities:
        _linux.drop_capability_bounds()
    if plan.landlock and plan.namespaces:
        ruleset = _landlock.prepare((*_mounts.SCRATCH_FOLDERS, *_DEVICES))
        _landlock.restrict(ruleset)
        os.close(ruleset)
    elif plan.landlock:
        shared = (_SEMAPHORES,) if user is not None else ()  # under one user, calls would see each other's files there
        readable = (*runtime_paths(), "/etc/ld.so.cache", "/etc/localtime")
        confinement.ruleset = _landlock.prepare((confinement.home, *_DEVICES, *shared), readable)
    if plan.system_call_filter:
        _seccomp.deny_system_calls(pid_namespaces=plan.namespaces, memory_files=plan.control_groups)
    # Nobody of the same user looks into a slot, nor into the init that shares its memory.
    _linux.set_dumpable(False)
    return confinement


def enter_child(plan: Plan, user: int | None, confinement: Confinement) -> None:
    """Gives up every right that a program must not have; the calling process is the child of a slot, on trial.

    Raises:
        OSError: something that worked when it was probed does not now; the program must not run.
    """
    if plan.level != OFF:
        hot.give_up_rights(user, plan.drop_capabilities, not plan.namespaces, confinement.ruleset)


def _plain_folder(folder: str, user: int | None) -> Confinement:
    home = os.path.join(folder, "home")
    os.mkdir(home, 0o700)
    if user is not None:
        os.chown(home, user, user)
    return Confinement(home, (home,), {home: frozenset()})


def _prefer_as_victims() -> None:
    """Where the kernel has to choose, slots go before other services, and programs, being larger, before their slot."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def _ids_are_wide() -> bool:
    """Whether this machine, or its user namespace, has ids beyond the traditional 65,536."""
    try:
        with open("/proc/self/uid_map", encoding="ascii") as file:
            ranges = [[int(number) for number in line.split()] for line in file]
    except (OSError, ValueError):
        return False
    return any(first <= _WIDE_FIRST and first + count >= 2**31 for first, _, count in ranges)
