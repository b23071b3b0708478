"""Tokens and key pairs from files."""

from __future__ import annotations

from pathlib import Path

import pytest

from rstar_protos.errors import UserInputError
from rstar_protos.service.security import ClientSecurity, ServerSecurity, read_token


def test_the_token_is_the_first_line(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("  secret \nsecond\n")
    assert read_token(path) == "secret"
    assert read_token(None) is None


@pytest.mark.parametrize("content", ["", "\nlater", "   ", "s\u00e9cret"])
def test_a_file_without_a_usable_token_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "token"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UserInputError, match="first line is the token"):
        read_token(path)


def test_a_missing_token_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserInputError, match="readable file"):
        read_token(tmp_path / "none")


def test_half_a_key_pair_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserInputError, match="go together"):
        ServerSecurity(certificate=tmp_path / "c").credentials()
    with pytest.raises(UserInputError, match="go together"):
        ClientSecurity(private_key=tmp_path / "k").credentials()


def test_a_client_authority_without_tls_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserInputError, match="needs --tls-cert"):
        ServerSecurity(client_ca=tmp_path / "ca").credentials()


def test_without_tls_there_are_no_credentials() -> None:
    assert ServerSecurity(token="t").credentials() is None


def test_options_of_a_child_name_files_and_never_the_token() -> None:
    security = ClientSecurity(ca=Path("ca.pem"), certificate=Path("c.pem"), private_key=Path("k.pem"), token="secret")
    assert security.as_options("--sandbox", Path("token")) == [
        *("--sandbox-ca", "ca.pem"),
        *("--sandbox-cert", "c.pem"),
        *("--sandbox-key", "k.pem"),
        *("--sandbox-token-file", "token"),
    ]
    assert ClientSecurity(token="secret").as_options("--sandbox") == []
