"""The service's handle on its zygote process. Uses neither gRPC nor threads, so it can be started before both."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from typing import Any

from rstar_sandbox.isolation import Plan
from rstar_sandbox.settings import SandboxSettings
from rstar_sandbox.tiers import STANDARD, modules_of_tier
from rstar_sandbox.warmup import WARM_ENVIRONMENT

__all__ = ["ZygoteProcess", "zygote_environment"]

# Programs see none of the service's environment (which may hold tokens) but what finds and tunes libraries.
_PASSED = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
_PASSED_PREFIXES = ("OPENBLAS_", "MKL_", "RSTAR_SANDBOX_")
_STOP_SECONDS = 5.0
_MESSAGE_BYTES = 65536


class ZygoteProcess:
    """A started zygote.

    Args:
        settings: of the service.
        tier: what it imports.
        plan: the isolation of its slots; None: it finds out by itself.
    """

    def __init__(self, settings: SandboxSettings, tier: str = STANDARD, plan: Plan | None = None) -> None:
        self.control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        arguments = {
            "folder": str(settings.folder),
            "tier": tier,
            "warm": modules_of_tier(tier, settings.warm),
            "level": settings.isolation,
            "plan": plan.to_dict() if plan is not None else None,
            "scratch_bytes": settings.scratch_bytes,
            "scratch_files": settings.scratch_files,
            "parent": os.getpid(),
        }
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own module under our own interpreter
                [sys.executable, "-m", "rstar_sandbox.zygote", str(theirs.fileno()), json.dumps(arguments)],
                stdin=subprocess.DEVNULL,
                # Standard output of a service belongs to its ready line.
                stdout=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env=zygote_environment(),
                start_new_session=True,
            )
        finally:
            theirs.close()
        self.control.setblocking(False)

    @property
    def pid(self) -> int:
        """Process id of the zygote."""
        return self._process.pid

    def ask_for_slot(self, number: int) -> socket.socket:
        """Asks for a slot and returns the service's end of the connection to it.

        Raises:
            OSError: the zygote is gone.
        """
        ours, theirs = socket.socketpair()
        try:
            self.control.setblocking(True)
            socket.send_fds(self.control, [json.dumps({"slot": number}).encode()], [theirs.fileno()])
        except OSError:
            ours.close()
            raise
        finally:
            self.control.setblocking(False)
            theirs.close()
        ours.setblocking(False)
        return ours

    def kill_slot(self, number: int) -> None:
        """Has a slot killed that does not answer."""
        try:
            self.control.send(json.dumps({"kill": number}).encode())
        except OSError:
            self.kill()

    def read_message(self) -> dict[str, Any] | None:
        """The next message; None when the zygote is gone.

        Raises:
            BlockingIOError: nothing is there now.
        """
        try:
            content = self.control.recv(_MESSAGE_BYTES)
        except ConnectionResetError:
            return None
        message: dict[str, Any] | None = json.loads(content) if content else None
        return message

    def kill(self) -> None:
        """Kills the zygote at once; its slots die with it."""
        self._process.kill()

    def stop(self) -> None:
        """Lets the zygote end and clean up, then makes sure that it did."""
        self.control.close()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def zygote_environment() -> dict[str, str]:
    """What of the service's environment a zygote, and so a program, gets."""
    passed = {name: value for name, value in os.environ.items() if name in _PASSED or name.startswith(_PASSED_PREFIXES)}
    return {
        "LANG": "C.UTF-8",
        **passed,
        **WARM_ENVIRONMENT,
        "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry and os.path.isdir(entry)),
        # Sets of strings are then ordered alike in every call and after every restart.
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUTF8": "1",
        # A function of the C library that is first called in a child would be looked up in every child anew.
        "LD_BIND_NOW": "1",
    }
