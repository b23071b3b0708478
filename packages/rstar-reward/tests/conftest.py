"""What the tests of this package share: a plug-in that misbehaves, services in child processes, the labelled cases."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from rstar_protos.service import EmbeddedService
from rstar_reward.verifiers import load_verifier
from rstar_reward.workers import PoolSettings, WorkerPool

# How long an example takes depends on who else uses the machine.
settings.register_profile("reward", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("reward")

PLUGIN = Path(__file__).parent / "plugin"


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Makes the verifier `misbehaving` known here and in the workers."""
    monkeypatch.syspath_prepend(str(PLUGIN))
    monkeypatch.setenv("PYTHONPATH", str(PLUGIN))
    load_verifier.cache_clear()
    yield
    load_verifier.cache_clear()


@pytest.fixture
async def pool(plugin: None) -> AsyncIterator[WorkerPool]:
    """Two workers with short limits that know the misbehaving verifier.

    However busy the machine is, a second attempt ends by its CPU time: the wall-clock time it gets is no limit.
    """
    limits = PoolSettings(
        workers=2, deadline_seconds=0.5, kill_seconds=1.0, busy_patience=1000.0, warm=("misbehaving",)
    )
    pool = WorkerPool(limits)
    await pool.start()
    yield pool
    await pool.close()


@pytest.fixture(scope="session")
def endpoint() -> Iterator[str]:
    """A reward service in a child process."""
    with EmbeddedService("reward", [sys.executable, "-m", "rstar_reward", "serve", "--workers", "2"]) as service:
        yield service.endpoint


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of shared test data."""
    given = os.environ.get("RSTAR_SHARED")
    folder = Path(given) if given else Path(__file__).resolve().parents[3].parent / "shared"
    if not folder.is_dir():
        pytest.skip("shared data absent: set RSTAR_SHARED to its folder")
    return folder


def eventually(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    """Waits for a condition that another process brings about."""
    give_up = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > give_up:
            return False
        time.sleep(0.01)
    return True


@pytest.fixture(name="eventually")
def _eventually() -> Callable[[Callable[[], bool]], bool]:
    return eventually


def descendants(pid: int) -> set[int]:
    """All processes below a process."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)] = int(fields[1])
    found: set[int] = set()
    frontier = {pid}
    while frontier:
        frontier = {child for child, parent in parents.items() if parent in frontier} - found
        found |= frontier
    return found


@pytest.fixture(name="descendants")
def _descendants() -> Callable[[int], set[int]]:
    return descendants
