"""The store that ranks meet at."""

from __future__ import annotations

import socket

import pytest

from rstar_trainer.backends.meeting import join_meeting, open_meeting


def test_what_one_rank_writes_another_reads() -> None:
    store = open_meeting("127.0.0.1", 2, 30)
    other = join_meeting("127.0.0.1", store.port, 2, 30)
    other.set("greeting", "hello")
    assert store.get("greeting") == b"hello"


def test_the_port_is_held_from_the_moment_it_is_known() -> None:
    store = open_meeting("127.0.0.1", 2, 30)
    with socket.socket() as taker, pytest.raises(OSError, match="in use"):
        taker.bind(("127.0.0.1", store.port))


def test_meetings_on_one_machine_do_not_collide() -> None:
    stores = [open_meeting("127.0.0.1", 1, 30) for _ in range(20)]
    assert len({store.port for store in stores}) == 20
