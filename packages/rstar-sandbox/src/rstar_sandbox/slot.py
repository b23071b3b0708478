"""A slot: forks one single-use child per call, watches it from outside, and leaves nothing of it behind.

A slot never runs user code itself. Where the machine allows it is PID 1 of its own namespaces (see `isolation.py`);
otherwise it is a child subreaper. It drains the program's pipes, enforces wall clock, memory and output limits, and
gives the verdict. It ends when its connection to the service does.
"""

from __future__ import annotations

import os
import shutil
import socket
from dataclasses import dataclass

from rstar_sandbox import isolation

__all__ = ["Slot", "remove_folder"]


@dataclass
class Slot:
    """What a slot is made of."""

    number: int
    folder: str
    """Its own folder; each call works in a fresh one below."""
    plan: isolation.Plan
    connection: socket.socket
    calls: int = 0

    @property
    def user(self) -> int | None:
        """The user id of its children."""
        return isolation.user_of_slot(self.plan, self.number)

    def new_folder(self) -> str:
        """Makes the working directory of the next call."""
        self.calls += 1
        path = os.path.join(self.folder, str(self.calls))
        os.mkdir(path, 0o700)
        if self.user is not None:
            os.chown(path, self.user, self.user)
        return path


def remove_folder(folder: str) -> None:
    """Removes a working directory; most calls leave it empty."""
    try:
        os.rmdir(folder)
    except OSError:
        shutil.rmtree(folder, ignore_errors=True)
