"""Waits that end, for work that may never do so."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from rstar_protos.errors import InfrastructureError

__all__ = ["UnendedError", "in_background", "within"]

Result = TypeVar("Result")


class UnendedError(InfrastructureError):
    """Work did not end in time. It may still hold a device: nothing should be begun on that, nor anything closed."""


def in_background(what: str, work: Callable[[], Result]) -> Future[Result]:
    """Does work in a thread that the end of the process does not wait for, as it would for those of an executor.

    Args:
        what: name of the thread.
        work: whose result or exception the future gets.
    """
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # for whoever waits
            future.set_exception(error)

    threading.Thread(target=run, name=what, daemon=True).start()
    return future


def within(seconds: float, what: str, work: Callable[[], Result]) -> Result:
    """Does work in another thread, which is left behind when it takes too long.

    Args:
        seconds: longest wait.
        what: for the message.
        work: whose result or exception is passed on.

    Raises:
        UnendedError: it did not end in time.
    """
    future = in_background(what, work)
    if not wait([future], seconds).done:
        raise UnendedError(f"{what} did not end within {seconds:g} s")
    return future.result()
