"""Where ranks meet: a store that rank 0 opens on a port the system chooses, and that stays open.

A port that is looked for, closed and opened again later can be taken by another process in between.
"""

from __future__ import annotations

from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # torch does not mark it as exported

__all__ = ["join_meeting", "open_meeting"]


def open_meeting(address: str, ranks: int, seconds: float) -> TCPStore:
    """The store itself, in rank 0; its `port` is what the others need.

    Args:
        address: of this machine, as the other ranks reach it.
        ranks: that will meet.
        seconds: longest wait for one of them.
    """
    return TCPStore(address, 0, ranks, True, timedelta(seconds=seconds), wait_for_workers=False)


def join_meeting(address: str, port: int, ranks: int, seconds: float) -> TCPStore:
    """The store as the other ranks see it."""
    return TCPStore(address, port, ranks, False, timedelta(seconds=seconds))
