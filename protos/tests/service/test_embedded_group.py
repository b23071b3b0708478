"""Services of one job: started together, told of restarts by name, given up with the reason, and ended together."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from rstar_protos.errors import ServiceUnavailableError
from rstar_protos.sampling.v1 import sampling_pb2, sampling_pb2_grpc
from rstar_protos.service import EmbeddedGroup, call_with_retry

HOSTS = {"PYTHONPATH": str(Path(__file__).parent / "hosts")}
DEADLINE_SECONDS = 60.0


async def until(condition: Callable[[], object]) -> None:
    give_up = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < give_up, "the condition did not come about"
        await asyncio.sleep(0.02)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def test_services_start_and_end_together(tmp_path: Path) -> None:
    group = EmbeddedGroup(tmp_path)
    endpoints = [group.add(name, ["echo", "--die", str(tmp_path / "die")], env=HOSTS) for name in ("one", "two")]
    await group.start()
    pids = group.pids
    for name, endpoint in zip(pids, endpoints, strict=True):
        stub = sampling_pb2_grpc.SamplingServiceStub(group.open(endpoint))
        request = sampling_pb2.ResampleGroupRequest(group_id=name, keep=1)
        answer = await call_with_retry(stub.ResampleGroup, request, timeout_s=30, patience_s=DEADLINE_SECONDS)
        assert answer.group_id == name
    await group.close()
    assert not any(alive(pid) for pid in pids.values())
    assert (tmp_path / "two.log").exists()


async def test_a_restart_is_told_by_name_and_a_service_that_stays_away_ends_the_wait(tmp_path: Path) -> None:
    told: list[tuple[str, int]] = []
    group = EmbeddedGroup(tmp_path, lambda name, count: told.append((name, count)))
    group.add("echo", ["echo", "--die", str(tmp_path / "die")], env=HOSTS)
    await group.start()
    try:
        impatient = asyncio.ensure_future(group.failed())
        first = group.pids["echo"]
        os.kill(first, signal.SIGKILL)
        await until(lambda: told)
        assert told == [("echo", 1)]
        assert group.failure is None
        impatient.cancel()  # the wait of one caller must not end that of another
        (tmp_path / "die").touch()
        os.kill(group.pids["echo"], signal.SIGKILL)
        with pytest.raises(ServiceUnavailableError, match="echo"):
            await asyncio.wait_for(group.failed(), DEADLINE_SECONDS)
        assert group.failure
    finally:
        await group.close()
