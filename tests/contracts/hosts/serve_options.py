"""The options that every `serve` command has, for hosts of these tests."""

from __future__ import annotations

import argparse
from pathlib import Path

from rstar_protos.service import ServeSettings, serve_settings


def parse(*more: str) -> tuple[ServeSettings, argparse.Namespace]:
    """Reads the shared options, and `more` ones that take a text."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--listen", default="127.0.0.1:0")
    for option in ("--tls-cert", "--tls-key", "--tls-client-ca", "--token-file"):
        parser.add_argument(option, type=Path)
    parser.add_argument("--metrics-port", type=int)
    parser.add_argument("--watch-parent", action="store_true")
    shared = [action.dest for action in parser._actions if action.dest != "help"]
    for option in more:
        parser.add_argument(option)
    values = parser.parse_args()
    return serve_settings(**{name: getattr(values, name) for name in shared}), values
