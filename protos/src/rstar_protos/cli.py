"""How every rstar command line ends: one-line errors; exit codes 1 (infrastructure), 2 (input), 130 (interrupted)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

from rstar_protos.errors import InfrastructureError, InterruptedRunError, UserInputError, known_as
from rstar_protos.usage import UsageError, input_error

__all__ = ["run", "run_typer"]

_INTERRUPTED = 130


def run(main: Callable[[], object]) -> None:
    """Runs a command line and turns our own errors into one line on stderr and an exit code.

    Args:
        main: parses `sys.argv` itself.
    """
    try:
        main()
    except UserInputError as error:
        _fail(str(error), 2)
    except InfrastructureError as error:
        _fail(str(error), 1)
    except InterruptedRunError as error:
        _fail(str(error), _INTERRUPTED)
    except KeyboardInterrupt:
        _fail("interrupted", _INTERRUPTED)


def run_typer(app: Callable[..., object], names: Mapping[str, str] | None = None) -> None:
    """As `run`, for a Typer application: what is wrong with its arguments is told in the same way.

    Args:
        app: the `typer.Typer`. Its commands leave exit code 130 to this function; see `InterruptedRunError`.
        names: options by the names of the fields that interfaces in Python have for them; errors tell the options.
    """
    run(lambda: _invoke(app, names or {}))


def _invoke(app: Callable[..., object], names: Mapping[str, str]) -> None:
    try:
        with known_as(names):
            code = app(standalone_mode=False)
    except Exception as error:
        if not isinstance(error, UsageError):
            raise
        if type(error).__name__ == "NoArgsIsHelpError":  # no arguments at all: its message is the help
            print(error.format_message(), file=sys.stderr)
            raise SystemExit(error.exit_code) from None
        raise input_error(error) from None
    if code == _INTERRUPTED:  # what Typer makes of Ctrl-C
        raise KeyboardInterrupt
    raise SystemExit(code if isinstance(code, int) else 0)


def _fail(message: str, code: int) -> None:
    print("error: " + " ".join(message.split()), file=sys.stderr)
    raise SystemExit(code)
