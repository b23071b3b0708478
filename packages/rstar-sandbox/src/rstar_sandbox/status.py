"""How a call ended: the typed status, in words and as the contract's number."""

from __future__ import annotations

from enum import Enum
from typing import cast

from rstar_protos.common.v1 import common_pb2

__all__ = ["Status"]


class Status(str, Enum):
    """How one call ended. Only `UNAVAILABLE` is the infrastructure's doing; all others are the program's."""

    OK = "ok"
    ERROR = "error"
    """The program raised; the traceback is in the result."""
    TIMEOUT = "timeout"
    """The wall clock or CPU limit was reached."""
    MEMORY_LIMIT = "memory_limit"
    OUTPUT_LIMIT = "output_limit"
    """Killed for writing without end; an exit after a cut is OK with the truncation flagged."""
    CRASHED = "crashed"
    """Ended by a signal or an exit code, without an exception."""
    UNAVAILABLE = "unavailable"

    @property
    def is_failure(self) -> bool:
        """True when the program is to blame: every status except OK and UNAVAILABLE."""
        return self not in (Status.OK, Status.UNAVAILABLE)

    def to_proto(self) -> common_pb2.ToolStatus:
        """The contract's number."""
        return cast("common_pb2.ToolStatus", common_pb2.ToolStatus.Value(f"TOOL_STATUS_{self.name}"))

    @classmethod
    def from_proto(cls, number: int) -> Status:
        """From the contract's number.

        Raises:
            ValueError: not a status of the sandbox.
        """
        return cls(common_pb2.ToolStatus.Name(cast("common_pb2.ToolStatus", number))[len("TOOL_STATUS_") :].lower())
