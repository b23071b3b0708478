"""Whether a service grows: processes, descriptors, mounts, control groups, folders and memory over many calls.

The programs leave behind what programs leave: daemons, files, threads, output that was cut, crashes.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rstar_protos.service import EmbeddedService
from rstar_sandbox.client import SandboxClient, execute_request

__all__ = ["Growth", "Holding", "growth_over", "holding_of", "measure_growth"]

_PROGRAMS = (
    "print(sum(range(1000)))",
    "import os\nif os.fork() == 0:\n    os.setsid()\n    import time; time.sleep(60)",
    "open('file', 'w').write('x' * 10_000); import os; os.makedirs('a/b'); os.symlink('/', 'a/link')",
    "import threading, time; threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
    "print('y' * 200_000)",
    "import os; os.kill(os.getpid(), 9)",
    "1 / 0",
    "x = bytearray(20_000_000); len(x)",
)
_SETTLE_SECONDS = 30.0
_SAME_SEEN = 3


@dataclass(frozen=True)
class Holding:
    """What a service and everything below it hold."""

    processes: int
    descriptors: int
    mounts: int
    """Over all processes with a mount namespace of their own; in the machine's, neighbours mount too."""
    control_groups: int
    folders: int
    """Below its working folder."""
    memory_bytes: int
    """Private and shared pages, each counted once."""


@dataclass(frozen=True)
class Growth:
    """The same service after its first calls and after its last."""

    calls: int
    before: Holding
    after: Holding

    @property
    def grew(self) -> dict[str, int]:
        """By how much, of all that must not grow at all."""
        before, after = asdict(self.before), asdict(self.after)
        return {name: after[name] - before[name] for name in before if name != "memory_bytes"}

    @property
    def is_flat(self) -> bool:
        """Nothing is left behind; memory may move by what allocators and caches do, not by what calls do."""
        allowed = 16 * 1024**2 + self.before.memory_bytes // 10
        return max(self.grew.values()) <= 0 and self.after.memory_bytes - self.before.memory_bytes <= allowed


def measure_growth(
    calls: int, options: Sequence[str] = ("--warm", ""), on_done: Callable[[int], None] = lambda _: None
) -> Growth:
    """Starts a service and makes it serve calls.

    Args:
        calls: how many in all.
        options: of `rstar-sandbox serve`; the programs need nothing that is imported ahead.
        on_done: told how many more are done.
    """
    with tempfile.TemporaryDirectory(prefix="rstar-leaks-") as folder:
        command = [sys.executable, "-m", "rstar_sandbox", "serve", "--work-dir", folder, *options]
        service = EmbeddedService("sandbox", command)
        endpoint = service.start()
        try:
            assert service.pid is not None
            return asyncio.run(growth_over(endpoint, service.pid, Path(folder), calls, on_done))
        finally:
            service.stop()


async def growth_over(
    endpoint: str, pid: int, folder: Path, calls: int, on_done: Callable[[int], None] = lambda _: None
) -> Growth:
    """Makes calls and looks at what the service holds after the first tenth and after all.

    Args:
        endpoint: of the service.
        pid: its process.
        folder: its working folder, which nothing else uses.
        calls: how many in all.
        on_done: told how many more are done.
    """
    first = max(1, calls // 10)
    async with SandboxClient(endpoint) as client:
        await _make(client, 0, first, on_done)
        before = await _settled(pid, folder)
        await _make(client, first, calls, on_done)
        return Growth(calls, before, await _settled(pid, folder))


async def _make(client: SandboxClient, start: int, stop: int, on_done: Callable[[int], None]) -> None:
    requests = (
        execute_request(f"{_PROGRAMS[n % len(_PROGRAMS)]}\n# {n}", request_id=f"leak-{n}") for n in range(start, stop)
    )
    async for _ in client.run_many(requests):
        on_done(1)


async def _settled(pid: int, folder: Path) -> Holding:
    """What is held once nothing changes any more: slots fork the next child after they have answered."""
    loop = asyncio.get_running_loop()
    deadline, last, same = loop.time() + _SETTLE_SECONDS, holding_of(pid, folder), 0
    while same < _SAME_SEEN and loop.time() < deadline:
        await asyncio.sleep(0.2)
        now = holding_of(pid, folder)
        same = same + 1 if _countable(now) == _countable(last) else 0
        last = now
    return last


def _countable(holding: Holding) -> dict[str, Any]:
    return {name: value for name, value in asdict(holding).items() if name != "memory_bytes"}


def holding_of(pid: int, folder: Path) -> Holding:
    """What a process and everything below it hold now."""
    pids = [pid, *_below(pid)]
    return Holding(
        processes=len(pids),
        descriptors=sum(_entries(f"/proc/{one}/fd") for one in pids),
        mounts=sum(_lines(f"/proc/{one}/mounts") for one in pids if _has_own_mounts(one)),
        control_groups=sum(1 for _ in _groups_of(folder)),
        folders=sum(1 for _ in folder.rglob("*")),
        memory_bytes=sum(_pss_bytes(one) for one in pids),
    )


def _below(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            for child in Path(f"/proc/{pid}/task/{thread}/children").read_text().split():
                found += [int(child), *_below(int(child))]
    except OSError:
        pass
    return found


def _entries(path: str) -> int:
    try:
        return len(os.listdir(path))
    except OSError:
        return 0


def _has_own_mounts(pid: int) -> bool:
    try:
        return os.readlink(f"/proc/{pid}/ns/mnt") != os.readlink("/proc/self/ns/mnt")
    except OSError:
        return False


def _lines(path: str) -> int:
    try:
        return Path(path).read_bytes().count(b"\n")
    except OSError:
        return 0


def _groups_of(folder: Path) -> Iterator[Path]:
    """Groups that are named after the zygotes' folders, in whatever hierarchy."""
    for zygote in folder.iterdir():
        for hierarchy in ("memory", "pids", "unified", "."):
            yield from Path("/sys/fs/cgroup", hierarchy).glob(f"**/{zygote.name}-*")


def _pss_bytes(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_bytes().splitlines():
            if line.startswith(b"Pss:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return 0
