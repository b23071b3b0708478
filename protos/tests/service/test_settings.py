"""Only TLS plus a token may leave the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from rstar_protos.errors import UserInputError
from rstar_protos.service.security import ServerSecurity
from rstar_protos.service.settings import ServeSettings, serve_settings

TLS = {"certificate": Path("c"), "private_key": Path("k")}


@pytest.mark.parametrize("security", [ServerSecurity(), ServerSecurity(token="t"), ServerSecurity(**TLS)])
@pytest.mark.parametrize("listen", ["0.0.0.0:7001", "[::]:7001", "192.0.2.1:7001", "example.org:7001"])
def test_other_machines_need_tls_and_a_token(listen: str, security: ServerSecurity) -> None:
    with pytest.raises(UserInputError, match="needs --tls-cert, --tls-key and --token-file"):
        ServeSettings(listen=listen, security=security).address()


def test_with_both_any_address_is_allowed() -> None:
    address = ServeSettings(listen="0.0.0.0:7001", security=ServerSecurity(**TLS, token="t")).address()
    assert not address.is_local


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "unix:/run/x.sock", "[::1]:0"])
def test_local_addresses_need_nothing(listen: str) -> None:
    assert serve_settings(listen).address().is_local
