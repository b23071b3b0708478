"""Starts a command in another world: as an ordinary user, or as in a container. `launch.py WORLD COMMAND...`.

- `user`: an ordinary user without capabilities, who may make user namespaces where the kernel lets users.
- `container`: root with the capabilities that container engines leave it, system calls that make or enter namespaces
  or mounts refused, and no control groups.
- `contained-user`: both at once.

Root gives the Python runtime to the ordinary user first, in a mount namespace of its own, where private folders are
in between. Whoever is not root already is the ordinary user.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
import sysconfig

import rstar_protos
import rstar_sandbox

USER = 54321
_NEW_MOUNT = 0x00020000
_BIND, _RECURSIVE, _PRIVATE = 0x1000, 0x4000, 0x40000
# chown, dac_override, fowner, fsetid, kill, setgid, setuid, setpcap, net_bind_service, net_raw, sys_chroot, mknod,
# audit_write, setfcap
_CONTAINER_CAPABILITIES = {0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 27, 29, 31}
_AUDIT = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_CLONE = {"x86_64": 56, "aarch64": 220}
_REFUSED = {  # unshare, setns, mount, umount2, pivot_root
    "x86_64": (272, 308, 165, 166, 155),
    "aarch64": (97, 268, 40, 39, 41),
}
_CLONE3 = 435
_NEW_ANY = 0x7E020000

_libc = ctypes.CDLL(None, use_errno=True)


def main(world: str, command: list[str]) -> None:
    root = os.geteuid() == 0
    if root:
        _check(_libc.unshare(_NEW_MOUNT), "unshare")
        _mount(None, "/", None, _RECURSIVE | _PRIVATE)
        _open_the_way()
        if world != "user" and os.path.isdir("/sys/fs/cgroup"):
            _mount("none", "/sys/fs/cgroup", "tmpfs", 0)
    elif world == "container":
        raise SystemExit("only root can be root in a container")
    if world != "user":
        _refuse_namespaces(needs_promise=not root)
    if root and world == "container":
        _drop_bounds(_CONTAINER_CAPABILITIES)
    elif root:
        _drop_bounds(set())
        os.setgroups([])
        os.setresgid(USER, USER, USER)
        os.setresuid(USER, USER, USER)
    os.environ["HOME"] = "/tmp"
    os.execv(command[0], command)


def _open_the_way() -> None:
    """Makes what the service needs readable for everybody: private folders above it give way to empty ones."""
    needed = {sys.prefix, sys.base_prefix, sysconfig.get_paths()["stdlib"], os.path.realpath(sys.executable)}
    needed |= {os.path.dirname(package.__path__[0]) for package in (rstar_protos, rstar_sandbox)}
    needed |= {os.path.realpath(path) for path in needed}
    needed |= {path for path in sys.path if os.path.isdir(path) and os.path.basename(path) != "worlds"}
    blocked: dict[str, set[str]] = {}
    for path in needed:
        for above in [*_ancestors(path), path]:
            if not os.stat(above).st_mode & 0o001:
                entries = [path] if above != path else [os.path.join(path, name) for name in os.listdir(path)]
                blocked.setdefault(above, set()).update(entries)
                break
    for above, paths in blocked.items():
        tops = [path for path in paths if not any(path.startswith(other + "/") for other in paths)]
        held = {path: os.open(path, os.O_PATH) for path in tops}
        _mount("none", above, "tmpfs", 0, "mode=755")
        for path, descriptor in held.items():
            if os.path.isdir(f"/proc/self/fd/{descriptor}"):
                os.makedirs(path, exist_ok=True)
            else:
                os.makedirs(os.path.dirname(path), exist_ok=True)
                open(path, "w").close()
            _mount(f"/proc/self/fd/{descriptor}", path, None, _BIND | _RECURSIVE)
            os.close(descriptor)


def _ancestors(path: str) -> list[str]:
    parts = os.path.abspath(path).split("/")[1:-1]
    return ["/" + "/".join(parts[: n + 1]) for n in range(len(parts))]


def _drop_bounds(kept: set[int]) -> None:
    for capability in range(64):
        if capability not in kept and _libc.prctl(24, capability, 0, 0, 0) != 0:
            break


def _refuse_namespaces(needs_promise: bool) -> None:
    machine = platform.machine()

    def step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
        return struct.pack("=HBBI", code, if_true, if_false, value)

    refuse, allow = step(0x06, 0x00050001), step(0x06, 0x7FFF0000)
    program = [
        step(0x20, 4),
        step(0x15, _AUDIT[machine], 1, 0),
        allow,
        step(0x20, 0),
        step(0x15, _CLONE3, 0, 1),
        step(0x06, 0x00050000 | 38),
        step(0x15, _CLONE[machine], 0, 4),
        step(0x20, 16),
        step(0x45, _NEW_ANY, 0, 1),
        refuse,
        allow,
    ]
    for number in _REFUSED[machine]:
        program += [step(0x15, number, 0, 1), refuse]
    content = b"".join([*program, allow])
    buffer = ctypes.create_string_buffer(content)
    packed = struct.pack("HP", len(content) // 8, ctypes.addressof(buffer))
    if needs_promise:
        _check(_libc.prctl(38, 1, 0, 0, 0), "no_new_privs")
    _check(_libc.prctl(22, 2, ctypes.create_string_buffer(packed), 0, 0), "seccomp")


def _mount(source: str | None, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    words = [None if word is None else word.encode() for word in (source, target, kind)]
    _check(_libc.mount(*words, flags, None if options is None else options.encode()), f"mount {target}")


def _check(result: int, call: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{call}: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
