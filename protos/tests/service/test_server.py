"""Serving: what is refused before a service is made."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from rstar_protos.errors import UserInputError
from rstar_protos.sampling.v1 import sampling_pb2
from rstar_protos.service import ServeSettings, serve


def test_a_metrics_port_that_is_taken_is_refused_before_anything_listens(tmp_path: Path) -> None:
    made: list[object] = []
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        settings = ServeSettings(listen=f"unix:{tmp_path}/socket", metrics_port=port)
        with pytest.raises(UserInputError, match=rf"^--metrics-port: {port}"):
            asyncio.run(serve(settings, "echo", made.append, [sampling_pb2.DESCRIPTOR]))
    assert made == []  # no servicer, which for a rollout service would be its weights


def test_the_metrics_port_is_free_again_when_the_service_cannot_start(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = ServeSettings(listen=f"unix:{tmp_path}/absent/socket", metrics_port=port)
    with pytest.raises(UserInputError, match=r"^--listen: "):
        asyncio.run(serve(settings, "echo", lambda server: None, [sampling_pb2.DESCRIPTOR]))
    with socket.socket() as again:
        again.bind(("127.0.0.1", port))
