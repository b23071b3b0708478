"""Where sender and workers of an NCCL group meet: at a port that nobody else can take. NCCL itself needs GPUs."""

from __future__ import annotations

import socket
import threading

import pytest

pytest.importorskip("vllm")

from vllm.distributed.utils import StatelessProcessGroup

from rstar_rollout.engines.base import WeightUpdateError
from rstar_trainer.backends.nccl_sender import meet_workers

pytestmark = [pytest.mark.heavy, pytest.mark.timeout(600)]


def as_worker(address: str, port: int, rank: int, ranks: int, heard: list[object]) -> threading.Thread:
    """What vLLM's worker does with the address that it is told."""

    def join() -> None:
        group = StatelessProcessGroup.create(address, port, rank, ranks, store_timeout=60)
        heard.append(group.broadcast_obj(None, src=0))

    thread = threading.Thread(target=join)
    thread.start()
    return thread


def test_workers_meet_the_sender_at_the_port_they_are_told() -> None:
    heard: list[object] = []

    def tell(address: str, port: int) -> None:
        for thread in [as_worker(address, port, rank, 3, heard) for rank in (1, 2)]:
            thread.join()

    group = meet_workers("127.0.0.1", 3, tell, lambda group: (group.broadcast_obj("hello", src=0), group)[1], 60)
    assert heard == ["hello", "hello"]
    assert (group.rank, group.world_size) == (0, 3)


def test_the_port_is_held_from_the_moment_it_is_told() -> None:
    taken: list[str] = []

    def tell(address: str, port: int) -> None:
        with socket.socket() as taker:
            try:
                taker.bind((address, port))
            except OSError as error:
                taken.append(str(error))
        as_worker(address, port, 1, 2, []).join()

    meet_workers("127.0.0.1", 2, tell, lambda group: (group.broadcast_obj("hello", src=0), group)[1], 60)
    assert "in use" in taken[0]


def test_engines_that_refuse_are_not_waited_for() -> None:
    def tell(address: str, port: int) -> None:
        raise WeightUpdateError("other workers than expected")

    with pytest.raises(WeightUpdateError, match="other workers"):
        meet_workers("127.0.0.1", 2, tell, lambda group: group, 5)


def test_meetings_on_one_machine_do_not_collide() -> None:
    ports: list[int] = []

    def tell(address: str, port: int) -> None:
        ports.append(port)
        raise WeightUpdateError("enough")

    for _ in range(5):
        with pytest.raises(WeightUpdateError):
            meet_workers("127.0.0.1", 2, tell, lambda group: group, 5)
    assert len(set(ports)) == 5
