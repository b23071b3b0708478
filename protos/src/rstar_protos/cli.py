"""How every rstar command line ends: one-line errors; exit codes 1 (infrastructure), 2 (input), 130 (interrupted)."""

from __future__ import annotations

import sys
from collections.abc import Callable

from rstar_protos.errors import InfrastructureError, UserInputError

__all__ = ["run"]


def run(app: Callable[[], object]) -> None:
    """Runs a command-line application and turns our own errors into one line on stderr and an exit code.

    Args:
        app: a Typer application or any callable that parses `sys.argv` itself.
    """
    try:
        app()
    except UserInputError as error:
        _fail(str(error), 2)
    except InfrastructureError as error:
        _fail(str(error), 1)
    except KeyboardInterrupt:
        _fail("interrupted", 130)


def _fail(message: str, code: int) -> None:
    print("error: " + " ".join(message.split()), file=sys.stderr)
    raise SystemExit(code)
