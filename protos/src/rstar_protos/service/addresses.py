"""Addresses: where a service listens and how a client names it."""

from __future__ import annotations

import ipaddress
import os
import socket
import stat
from dataclasses import dataclass

from rstar_protos.errors import UserInputError

__all__ = ["EMBEDDED", "ListenAddress", "Target", "parse_endpoint"]

EMBEDDED = "embedded"
"""The endpoint that means: start the service as a child process on a private Unix socket."""

# sun_path holds 108 bytes with the final NUL on Linux; macOS has 104.
_MAX_SOCKET_PATH = 103


@dataclass(frozen=True)
class ListenAddress:
    """Where a server listens: a Unix socket path, or a host and port."""

    socket_path: str | None = None
    host: str = ""
    port: int = 0

    @classmethod
    def parse(cls, text: str) -> ListenAddress:
        """Reads `unix:/path`, `host:port` or `[v6]:port`; port 0 lets the system choose.

        Raises:
            UserInputError: the text is none of them.
        """
        accepted = "unix:/path/to/socket or host:port, for example 127.0.0.1:7101"
        if text.startswith("unix:"):
            path = text[len("unix:") :]
            if not path.startswith("/"):
                raise UserInputError("--listen", text, "an absolute path, unix:/path/to/socket")
            if len(os.fsencode(path)) > _MAX_SOCKET_PATH:
                raise UserInputError("--listen", text, f"a socket path of at most {_MAX_SOCKET_PATH} bytes")
            return cls(socket_path=path)
        host, separator, port = text.rpartition(":")
        host = host.strip("[]")
        if not separator or not host or not port.isdigit() or int(port) > 65535:
            raise UserInputError("--listen", text, accepted)
        return cls(host=host, port=int(port))

    @property
    def is_local(self) -> bool:
        """True when only processes of this machine can connect."""
        if self.socket_path is not None or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def grpc_target(self) -> str:
        """The address in the form that `grpc.Server.add_*_port` takes."""
        if self.socket_path is not None:
            return f"unix:{self.socket_path}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    def check_free(self) -> None:
        """Removes a stale socket file; refuses an address that a living server holds.

        Raises:
            UserInputError: the address is in use.
        """
        if self.socket_path is not None:
            self._check_socket_free(self.socket_path)
        elif self.port:
            self._check_port_free()

    @staticmethod
    def _check_socket_free(path: str) -> None:
        try:
            mode = os.stat(path).st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(mode):
            raise UserInputError("--listen", f"unix:{path}", "a path that does not exist yet, or is a socket")
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(path)
            except ConnectionRefusedError:
                os.unlink(path)
                return
            except OSError as error:
                accepted = f"a path whose socket can be tried ({error.strerror})"
                raise UserInputError("--listen", f"unix:{path}", accepted) from error
        raise UserInputError("--listen", f"unix:{path}", "a path where no server is listening already")

    def _check_port_free(self) -> None:
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((self.host, self.port))
            except OSError as error:
                raise UserInputError(
                    "--listen",
                    f"{self.host}:{self.port}",
                    f"a free port, or 0 for any ({error.strerror or error})",
                ) from error


@dataclass(frozen=True)
class Target:
    """Where a channel goes, and whether it is encrypted."""

    grpc_target: str
    tls: bool


def parse_endpoint(endpoint: str) -> Target:
    """Reads a client-side endpoint: `unix:/path`, `grpc://host:port` or `grpcs://host:port` (TLS).

    Raises:
        UserInputError: the text is none of them.
    """
    if endpoint.startswith("unix:/"):
        return Target(endpoint, tls=False)
    for scheme, tls in (("grpc://", False), ("grpcs://", True)):
        if endpoint.startswith(scheme):
            host, separator, port = endpoint[len(scheme) :].rpartition(":")
            if separator and host and port.isdigit() and 0 < int(port) <= 65535:
                return Target(f"{host}:{port}", tls=tls)
    raise UserInputError(
        "endpoint",
        endpoint,
        f"{EMBEDDED!r}, unix:/path/to/socket, grpc://host:port, or grpcs://host:port for TLS",
    )
