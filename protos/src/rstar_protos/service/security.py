"""TLS (also mutual) and bearer tokens, for both ends of a connection."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import grpc

from rstar_protos.errors import UserInputError

__all__ = ["ClientSecurity", "ServerSecurity", "read_token"]


def read_token(path: Path | None, field: str = "--token-file") -> str | None:
    """Reads a bearer token from the first line of a file; None stays None.

    Raises:
        UserInputError: the file cannot be read or holds no token.
    """
    if path is None:
        return None
    token = _read(path, field).decode("utf-8", "replace").split("\n", 1)[0].strip()
    if not token or not token.isascii():
        raise UserInputError(field, str(path), "a file whose first line is the token, in ASCII")
    return token


@dataclass(frozen=True)
class ServerSecurity:
    """What a server needs to prove itself and to check its callers; all None: local addresses only."""

    certificate: Path | None = None
    private_key: Path | None = None
    client_ca: Path | None = None
    token: str | None = None

    @property
    def tls(self) -> bool:
        """True when connections are encrypted."""
        return self.certificate is not None

    def credentials(self) -> grpc.ServerCredentials | None:
        """Credentials for `add_secure_port`, or None without TLS.

        Raises:
            UserInputError: half a key pair, a client CA without one, or an unreadable file.
        """
        if (self.certificate is None) != (self.private_key is None):
            raise UserInputError.message("--tls-cert and --tls-key go together: give both or neither")
        if self.certificate is None or self.private_key is None:
            if self.client_ca is not None:
                raise UserInputError.message("--tls-client-ca needs --tls-cert and --tls-key")
            return None
        pair = (_read(self.private_key, "--tls-key"), _read(self.certificate, "--tls-cert"))
        client_ca = _read(self.client_ca, "--tls-client-ca") if self.client_ca else None
        return grpc.ssl_server_credentials(
            [pair], root_certificates=client_ca, require_client_auth=client_ca is not None
        )


@dataclass(frozen=True)
class ClientSecurity:
    """What a client needs to check the server and to prove itself."""

    ca: Path | None = None
    certificate: Path | None = None
    private_key: Path | None = None
    token: str | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """Channel credentials for a TLS endpoint; without `ca` the system's roots are trusted.

        Raises:
            UserInputError: half a key pair or an unreadable file.
        """
        if (self.certificate is None) != (self.private_key is None):
            raise UserInputError.message("certificate and private_key go together: give both or neither")
        return grpc.ssl_channel_credentials(
            root_certificates=_read(self.ca, "ca") if self.ca else None,
            private_key=_read(self.private_key, "private_key") if self.private_key else None,
            certificate_chain=_read(self.certificate, "certificate") if self.certificate else None,
        )

    def as_options(self, prefix: str, token_file: Path | None = None) -> list[str]:
        """The same security as options of a child's command line: `--sandbox-ca FILE ...` for the prefix `--sandbox`.

        Args:
            prefix: of the options.
            token_file: where the token came from; a token itself never stands on a command line.
        """
        options = {"ca": self.ca, "cert": self.certificate, "key": self.private_key, "token-file": token_file}
        return [text for name, path in options.items() if path is not None for text in (f"{prefix}-{name}", str(path))]


def _read(path: Path, field: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UserInputError(field, str(path), f"a readable file ({error.strerror})") from error
