"""The transport that all rstar services share: addresses, security, serving, channels, embedded services."""

from rstar_protos.service.addresses import EMBEDDED, ListenAddress
from rstar_protos.service.client import (
    RETRY_AFTER_KEY,
    abort_with_retry_hint,
    call_with_retry,
    open_channel,
    open_sync_channel,
)
from rstar_protos.service.embedded import EmbeddedService
from rstar_protos.service.embedded_group import EmbeddedGroup
from rstar_protos.service.security import ClientSecurity, ServerSecurity, read_token
from rstar_protos.service.server import RunningServer, serve, start_server
from rstar_protos.service.settings import ServeSettings, serve_settings

__all__ = [
    "EMBEDDED",
    "RETRY_AFTER_KEY",
    "ClientSecurity",
    "EmbeddedGroup",
    "EmbeddedService",
    "ListenAddress",
    "RunningServer",
    "ServeSettings",
    "ServerSecurity",
    "abort_with_retry_hint",
    "call_with_retry",
    "open_channel",
    "open_sync_channel",
    "read_token",
    "serve",
    "serve_settings",
    "start_server",
]
