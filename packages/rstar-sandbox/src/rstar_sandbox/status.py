"""How a call ended: the contracts' statuses of tool calls, of which a sandbox gives all but the two about parsing."""

from __future__ import annotations

from rstar_protos.vocabulary import ToolStatus as Status

__all__ = ["Status"]
