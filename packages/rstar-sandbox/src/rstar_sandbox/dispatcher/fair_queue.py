"""A bounded queue that clients share fairly. Pure: it knows neither gRPC nor time.

Clients take turns, one item each, however many items each of them has waiting. When the queue is full, whoever has the
longest queue gives way: a client that floods the service is refused, not its neighbours (the longest-queue-drop rule of
stochastic fair queueing).
"""

from __future__ import annotations

import collections
from dataclasses import dataclass, field
from typing import Generic, TypeVar

__all__ = ["Entry", "FairQueue"]

Item = TypeVar("Item")


@dataclass(eq=False)
class Entry(Generic[Item]):
    """One waiting item. `waiting` turns False when it left the queue, whichever way."""

    client: str
    item: Item
    bounded: bool
    """Counts against the limit and may be dropped for a client with less."""
    waiting: bool = True


@dataclass(eq=False)
class _Line(Generic[Item]):
    entries: collections.deque[Entry[Item]] = field(default_factory=collections.deque)
    bounded: int = 0


class FairQueue(Generic[Item]):
    """Items by client; `limit` bounds those that are bounded.

    Entries that left early stay in their line until they reach its head, so that leaving takes constant time.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lines: collections.OrderedDict[str, _Line[Item]] = collections.OrderedDict()
        self._waiting = 0
        self._bounded = 0

    def __len__(self) -> int:
        return self._waiting

    @property
    def clients(self) -> int:
        """Clients with something in the queue."""
        return len(self._lines)

    def put(
        self, client: str, item: Item, *, bounded: bool = True, first: bool = False
    ) -> tuple[Entry[Item] | None, Entry[Item] | None]:
        """Adds an item.

        Args:
            client: who waits.
            item: what waits.
            bounded: False for those that bound themselves.
            first: before all others of this client, whose turn comes next: for an item that had its turn already.

        Returns:
            The new entry, or None when there is no room; and the entry of another client that had to go for it.
        """
        dropped = None
        if bounded and self._bounded >= self.limit:
            dropped = self._drop_for(client)
            if dropped is None:
                return None, None
        entry = Entry(client, item, bounded)
        line = self._lines.get(client)
        if line is None:
            line = self._lines[client] = _Line()
        if first:
            line.entries.appendleft(entry)
            self._lines.move_to_end(client, last=False)
        else:
            line.entries.append(entry)
        line.bounded += bounded
        self._bounded += bounded
        self._waiting += 1
        return entry, dropped

    def pop(self) -> Entry[Item] | None:
        """The next item of the client whose turn it is; None when nothing waits."""
        while self._lines:
            client, line = next(iter(self._lines.items()))
            while line.entries:
                entry = line.entries.popleft()
                if entry.waiting:
                    self._leave(entry, line)
                    if line.entries:
                        self._lines.move_to_end(client)
                    else:
                        del self._lines[client]
                    return entry
            del self._lines[client]
        return None

    def remove(self, entry: Entry[Item]) -> None:
        """Takes an item out; harmless when it left already."""
        if entry.waiting:
            line = self._lines[entry.client]
            self._leave(entry, line)
            while line.entries and not line.entries[-1].waiting:
                line.entries.pop()
            if not line.entries:
                del self._lines[entry.client]

    def _leave(self, entry: Entry[Item], line: _Line[Item]) -> None:
        entry.waiting = False
        line.bounded -= entry.bounded
        self._bounded -= entry.bounded
        self._waiting -= 1

    def _drop_for(self, client: str) -> Entry[Item] | None:
        """The newest bounded entry of the longest line, unless `client` would then have the longest itself."""
        mine = self._lines[client].bounded if client in self._lines else 0
        longest = max(self._lines.values(), key=lambda line: line.bounded, default=None)
        if longest is None or longest.bounded <= mine + 1:
            return None
        for entry in reversed(longest.entries):
            if entry.waiting and entry.bounded:
                self.remove(entry)
                return entry
        return None
