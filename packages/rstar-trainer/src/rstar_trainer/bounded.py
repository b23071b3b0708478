"""A wait that ends, for work that may never do so."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

from rstar_protos.errors import InfrastructureError

__all__ = ["within"]

Result = TypeVar("Result")


def within(seconds: float, what: str, work: Callable[[], Result]) -> Result:
    """Does work in another thread, which is left behind when it takes too long.

    Args:
        seconds: longest wait.
        what: for the message.
        work: whose result or exception is passed on.

    Raises:
        InfrastructureError: it did not end in time. It may still hold a device: nothing should be begun on that.
    """
    outcome: queue.SimpleQueue[tuple[Result | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            outcome.put((work(), None))
        except BaseException as error:  # for the caller, whatever it is
            outcome.put((None, error))

    threading.Thread(target=run, name=what, daemon=True).start()
    try:
        result, error = outcome.get(timeout=seconds)
    except queue.Empty:
        raise InfrastructureError(f"{what} did not end within {seconds:g} s") from None
    if error is not None:
        raise error
    return result  # type: ignore[return-value]  # there is one where there is no error
