"""The program of the self-test: it tries to get out. Runs inside the sandbox, on its own source alone.

Its standard input holds the targets as JSON; it prints a JSON list of the attacks that succeeded.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import sys
from collections.abc import Callable
from typing import Any


def attacks(target: dict[str, Any]) -> list[str]:
    """Names of the attacks that succeed."""
    libc = ctypes.CDLL(None)

    def read_a_host_file() -> bool:
        with open(target["file"], "rb") as file:
            return bool(file.read(1))

    def write_a_host_file() -> bool:
        with open(target["file"] + ".written", "wb") as file:
            return file.write(b"x") == 1

    def list_a_host_folder() -> bool:
        return bool(os.listdir(os.path.dirname(target["file"])))

    def connect_to_the_host() -> bool:
        socket.create_connection(("127.0.0.1", target["port"]), 1).close()
        return True

    def connect_to_a_host_socket() -> bool:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(target["socket"])
        return True

    def signal_the_service() -> bool:
        os.kill(target["pid"], 0)
        return b"rstar_sandbox" in see(target["pid"])  # an id of its own namespace is nobody else's

    def see_the_service() -> bool:
        return b"rstar_sandbox" in see(target["pid"])

    def see(pid: int) -> bytes:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return file.read()

    def read_its_parents_memory() -> bool:
        with open(f"/proc/{os.getppid() or 1}/mem", "rb") as file:
            return file.fileno() > 0

    def trace_its_parent() -> bool:
        return int(libc.ptrace(16, os.getppid() or 1, 0, 0)) == 0

    def make_a_user_namespace() -> bool:
        return int(libc.unshare(0x10000000)) == 0

    def mount_a_file_system() -> bool:
        return int(libc.mount(b"none", b"/", b"tmpfs", 0, None)) == 0

    def become_root() -> bool:
        if os.getuid() != 0:
            os.setresuid(0, 0, 0)
        return os.getuid() == 0 and has_capabilities()

    def has_capabilities() -> bool:
        header, data = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
        return libc.capget(header, data) == 0 and any(data)

    def keep_its_capabilities() -> bool:
        return has_capabilities()

    def raise_its_limits() -> bool:
        import resource

        resource.setrlimit(resource.RLIMIT_NOFILE, (1 << 19, 1 << 19))
        return True

    tried: tuple[Callable[[], bool], ...] = (
        read_a_host_file,
        write_a_host_file,
        list_a_host_folder,
        connect_to_the_host,
        connect_to_a_host_socket,
        signal_the_service,
        see_the_service,
        read_its_parents_memory,
        trace_its_parent,
        make_a_user_namespace,
        mount_a_file_system,
        become_root,
        keep_its_capabilities,
        raise_its_limits,
    )
    return [attempt.__name__.replace("_", " ") for attempt in tried if _succeeds(attempt)]


def _succeeds(attempt: Callable[[], bool]) -> bool:
    try:
        return attempt()
    except Exception:
        return False


if __name__ == "__main__":
    print(json.dumps(attacks(json.load(sys.stdin))))
