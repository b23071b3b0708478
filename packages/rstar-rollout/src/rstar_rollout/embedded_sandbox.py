"""The sandbox that `generate` and `chat` start for themselves: the real service in a child process.

Started by module name: this package does not import rstar-sandbox, it only needs it to be installed.
"""

from __future__ import annotations

import contextlib
import importlib.util
import sys
from collections.abc import Iterator

from rstar_protos.errors import UserInputError
from rstar_protos.service import EMBEDDED, EmbeddedService

__all__ = ["sandbox_endpoint"]


@contextlib.contextmanager
def sandbox_endpoint(given: str, slots: int = 0) -> Iterator[str | None]:
    """The endpoint to use for a ``--sandbox`` option; an embedded service lives as long as the context.

    Args:
        given: an endpoint, ``embedded``, or ``none`` for no tools.
        slots: programs at the same time in an embedded sandbox; 0: its own choice.

    Raises:
        UserInputError: embedded, but rstar-sandbox is not installed.
    """
    if given in ("", "none"):
        yield None
        return
    if given != EMBEDDED:
        yield given
        return
    if importlib.util.find_spec("rstar_sandbox") is None:
        raise UserInputError(
            "--sandbox",
            given,
            "an endpoint, none to go without tools, or embedded with rstar-sandbox installed (pip install "
            "'rstar-rollout[embedded]')",
        )
    command = [sys.executable, "-m", "rstar_sandbox", "serve"]
    service = EmbeddedService("sandbox", [*command, "--slots", str(slots)] if slots else command)
    try:
        yield service.start()
    finally:
        service.stop()
