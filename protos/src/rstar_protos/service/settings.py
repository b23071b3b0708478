"""The settings that all servers share, and their command-line form."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from rstar_protos.errors import UserInputError
from rstar_protos.service.addresses import ListenAddress
from rstar_protos.service.security import ServerSecurity, read_token

__all__ = ["DEFAULT_MAX_MESSAGE_BYTES", "ServeSettings", "serve_settings"]

DEFAULT_MAX_MESSAGE_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True)
class ServeSettings:
    """How a service listens, whom it trusts, and how it ends."""

    listen: str = "127.0.0.1:0"
    security: ServerSecurity = field(default_factory=ServerSecurity)
    metrics_port: int | None = None
    """Loopback port of the Prometheus endpoint; None: no endpoint."""
    drain_seconds: float = 30.0
    """How long running calls may go on after SIGTERM."""
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES
    watch_parent: bool = False
    """End when standard input is closed: the parent that holds the other end is gone."""

    def address(self) -> ListenAddress:
        """The parsed address, checked against the rule that only TLS plus a token may leave the machine.

        Raises:
            UserInputError: unusable address, or one that other machines can reach without TLS and token.
        """
        address = ListenAddress.parse(self.listen)
        if not address.is_local and not (self.security.tls and self.security.token):
            raise UserInputError(
                "--listen",
                self.listen,
                "127.0.0.1 or unix:/path; what other machines can reach needs --tls-cert, --tls-key and --token-file",
            )
        return address


def serve_settings(
    listen: str,
    tls_cert: Path | None = None,
    tls_key: Path | None = None,
    tls_client_ca: Path | None = None,
    token_file: Path | None = None,
    metrics_port: int | None = None,
    watch_parent: bool = False,
    drain_seconds: float = 30.0,
) -> ServeSettings:
    """Turns the options that every `serve` command has into settings.

    Raises:
        UserInputError: an unusable address, unreadable files, or an address that needs TLS and a token.
    """
    settings = ServeSettings(
        listen=listen,
        security=ServerSecurity(tls_cert, tls_key, tls_client_ca, read_token(token_file)),
        metrics_port=metrics_port,
        watch_parent=watch_parent,
        drain_seconds=drain_seconds,
    )
    settings.address()
    return settings
