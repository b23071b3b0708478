"""Addresses of servers and endpoints of clients."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar_protos.errors import UserInputError
from rstar_protos.service.addresses import ListenAddress, parse_endpoint


@pytest.mark.parametrize(
    ("text", "target", "local"),
    [
        ("unix:/run/x.sock", "unix:/run/x.sock", True),
        ("127.0.0.1:7001", "127.0.0.1:7001", True),
        ("127.8.9.10:1", "127.8.9.10:1", True),
        ("localhost:0", "localhost:0", True),
        ("[::1]:7001", "[::1]:7001", True),
        ("0.0.0.0:7001", "0.0.0.0:7001", False),
        ("[::]:7001", "[::]:7001", False),
        ("10.0.0.1:7001", "10.0.0.1:7001", False),
        ("example.org:7001", "example.org:7001", False),
    ],
)
def test_listen_addresses(text: str, target: str, local: bool) -> None:
    address = ListenAddress.parse(text)
    assert address.grpc_target == target
    assert address.is_local is local


@pytest.mark.parametrize("text", ["", "7001", ":7001", "host", "host:", "host:x", "host:70000", "host:-1", "unix:x"])
def test_unusable_listen_addresses_are_named(text: str) -> None:
    with pytest.raises(UserInputError, match="--listen"):
        ListenAddress.parse(text)


@given(st.text(max_size=40))
def test_any_text_is_an_address_or_an_input_error(text: str) -> None:
    for parse in (ListenAddress.parse, parse_endpoint):
        try:
            parse(text)
        except UserInputError:
            continue


def test_a_socket_path_that_the_system_would_cut_is_refused() -> None:
    with pytest.raises(UserInputError, match="at most 103 bytes"):
        ListenAddress.parse("unix:/" + "x" * 110)


def test_a_stale_socket_file_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    ListenAddress.parse(f"unix:{path}").check_free()
    assert not path.exists()


def test_a_living_socket_is_in_use(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with socket.socket(socket.AF_UNIX) as alive:
        alive.bind(str(path))
        alive.listen()
        with pytest.raises(UserInputError, match="no server is listening"):
            ListenAddress.parse(f"unix:{path}").check_free()
    assert path.exists()


def test_an_ordinary_file_is_never_removed(tmp_path: Path) -> None:
    path = tmp_path / "notes"
    path.write_text("keep")
    with pytest.raises(UserInputError, match="or is a socket"):
        ListenAddress.parse(f"unix:{path}").check_free()
    assert path.read_text() == "keep"


def test_a_port_in_use_is_named() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(UserInputError, match="a free port, or 0 for any"):
            ListenAddress.parse(f"127.0.0.1:{port}").check_free()


@pytest.mark.parametrize(
    ("endpoint", "target", "tls"),
    [
        ("unix:/run/x.sock", "unix:/run/x.sock", False),
        ("grpc://127.0.0.1:7001", "127.0.0.1:7001", False),
        ("grpcs://host:7001", "host:7001", True),
    ],
)
def test_endpoints(endpoint: str, target: str, tls: bool) -> None:
    found = parse_endpoint(endpoint)
    assert (found.grpc_target, found.tls) == (target, tls)


@pytest.mark.parametrize("endpoint", ["embedded", "http://host:1", "grpc://host", "grpc://:1", "grpc://host:0"])
def test_unusable_endpoints_are_named(endpoint: str) -> None:
    with pytest.raises(UserInputError, match="endpoint"):
        parse_endpoint(endpoint)
