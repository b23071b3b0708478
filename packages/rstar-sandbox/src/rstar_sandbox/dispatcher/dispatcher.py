"""The dispatcher: a bounded, fair queue in front of nodes that say how much they can take.

Nodes give credits, one for each program they could start at once; a program goes to a node only against a credit. That
is back-pressure and work stealing in one: a slow node gives no credits, a fast one takes what others have not. Each
attempt at a program is a lease of its own, which one coroutine waits for; an attempt whose node died is followed by one
of the next epoch on another node, and the answer of an ended lease has nobody to go to. So each request is answered
exactly once, whatever dies.
"""

from __future__ import annotations

import asyncio
import collections
import time
from collections.abc import Iterator
from dataclasses import dataclass

from rstar_protos.sandbox.v1 import sandbox_pb2
from rstar_sandbox.dispatcher.fair_queue import Entry, FairQueue
from rstar_sandbox.nodes import Node, NodeLostError
from rstar_sandbox.refusals import QueueFullError
from rstar_sandbox.status import Status

__all__ = ["DispatchSettings", "Dispatcher"]

_UNAVAILABLE = Status.UNAVAILABLE.to_proto()


@dataclass(frozen=True)
class DispatchSettings:
    """How programs wait and how their nodes are watched."""

    queue_limit: int | None = None
    """Programs that may wait; more are refused with a retry hint. None: as many as are worked off in
    `queue_seconds`, within `queue_per_slot`, whose lower bound falls with programs under `long_seconds`."""
    queue_seconds: float = 1.0
    """A queue that is worked off so soon is empty again soon after an overload."""
    queue_per_slot: tuple[int, int] = (16, 128)
    """The least and the most programs that may wait for each slot; the least for programs of `long_seconds` and more,
    who have to wait long anyway, and in proportion less for shorter ones, whose queue shall be gone in time."""
    long_seconds: float = 0.25
    attempts: int = 5
    """Nodes that may die under one program before it is answered as unavailable."""
    patience_seconds: float = 120.0
    """How long a program waits while no node at all is attached."""
    silence_seconds: float = 5.0
    """A worker or dispatcher that says nothing for so long counts as gone; heartbeats come four times as often."""


@dataclass(eq=False)
class _Seat:
    node: Node
    credits: int = 0
    leased: int = 0


_Waiter = asyncio.Future[_Seat]


class Dispatcher:
    """Places calls on nodes."""

    def __init__(self, settings: DispatchSettings | None = None) -> None:
        self.settings = settings or DispatchSettings()
        self.retries = 0
        """Programs that were run again because their node died."""
        self.nodes_lost = 0
        self.refused = 0
        """Programs refused, or dropped from the queue for a client with less in it."""
        self._queue: FairQueue[_Waiter] = FairQueue(0)
        self._seats: dict[Node, _Seat] = {}
        self._ready: collections.deque[_Seat] = collections.deque()
        """Seats with credits, each once; those that lost theirs meanwhile are passed over."""
        self._most_slots = 0
        """While nodes come back, what waits for them may stay."""
        self._mean_seconds = 0.01
        """Of a program on its node, the last few dozen weighing most."""
        self._giving_up: asyncio.TimerHandle | None = None
        self._closed = False

    # What operators see

    @property
    def nodes(self) -> Iterator[Node]:
        """Those attached."""
        return iter(self._seats)

    @property
    def workers(self) -> int:
        """Worker nodes attached; this machine's own slots are none."""
        return sum(node.remote for node in self._seats)

    @property
    def slots(self) -> int:
        """Programs that can run at the same time."""
        return sum(node.slots for node in self._seats)

    @property
    def running(self) -> int:
        """Programs that nodes have."""
        return sum(seat.leased for seat in self._seats.values())

    @property
    def queued(self) -> int:
        """Programs that wait for a node."""
        return len(self._queue)

    @property
    def queue_limit(self) -> int:
        """Programs that may wait now."""
        if self.settings.queue_limit is not None:
            return self.settings.queue_limit
        slots = max(1, self._most_slots)
        least, most = map(float, self.settings.queue_per_slot)
        worked_off = self.settings.queue_seconds * slots / max(self._mean_seconds, 1e-6)
        least *= min(1.0, self._mean_seconds / self.settings.long_seconds)
        return int(min(max(worked_off, least * slots), most * slots))

    # Nodes

    def attach(self, node: Node) -> None:
        """Takes a node in; it gets nothing before it gives credits."""
        self._seats[node] = _Seat(node)
        self._most_slots = max(self._most_slots, self.slots)
        if self._giving_up is not None:
            self._giving_up.cancel()
            self._giving_up = None

    def detach(self, node: Node, *, lost: bool) -> None:
        """Forgets a node; what it still runs ends by its own `NodeLostError`."""
        seat = self._seats.pop(node, None)
        if seat is None:
            return
        seat.credits = 0
        self.nodes_lost += lost
        if not self._seats and len(self._queue):
            self._wait_for_a_node()

    def give(self, node: Node, credits: int) -> None:
        """A node can take more programs."""
        seat = self._seats.get(node)
        if seat is None or credits < 1:
            return
        while credits and (entry := self._queue.pop()) is not None:
            if not entry.item.done():
                credits -= 1
                seat.leased += 1
                entry.item.set_result(seat)
        if credits:
            if not seat.credits:
                self._ready.append(seat)
            seat.credits += credits

    def revoke(self, node: Node) -> None:
        """A node's credits are void: it drains."""
        seat = self._seats.get(node)
        if seat is not None:
            seat.credits = 0

    # Calls

    async def execute(
        self, request: sandbox_pb2.ExecuteRequest, client: str, *, wait_for_room: bool = False
    ) -> sandbox_pb2.ExecuteResponse:
        """Runs one program to its answer. Cancelling stops it and frees what it held.

        Args:
            request: one that was checked.
            client: whom to be fair to.
            wait_for_room: for callers that bound what they have in flight themselves.

        Raises:
            QueueFullError: no room in the queue.
        """
        arrived, queue_seconds = time.monotonic(), 0.0
        for epoch in range(1, self.settings.attempts + 1):
            waiting_since = time.monotonic()
            try:
                seat = self._take()
                if seat is None:
                    seat = await self._wait(client, bounded=not wait_for_room and epoch == 1, first=epoch > 1)
            except NodeLostError:
                break
            leased_at = time.monotonic()
            queue_seconds += leased_at - waiting_since
            try:
                response = await seat.node.execute(request, epoch)
            except NodeLostError:
                self.retries += 1
                continue
            finally:
                seat.leased -= 1
            self._mean_seconds += 0.05 * (time.monotonic() - leased_at - self._mean_seconds)
            response.timing.queue_seconds += queue_seconds
            return response
        detail = f"no worker could run the program to its end within {time.monotonic() - arrived:.1f} s"
        response = sandbox_pb2.ExecuteResponse(request_id=request.request_id, status=_UNAVAILABLE, detail=detail)
        response.timing.queue_seconds = queue_seconds
        return response

    def close(self) -> None:
        """Ends all waiting; programs that wait are answered as unavailable."""
        self._closed = True
        self._fail_waiting()

    def _take(self) -> _Seat | None:
        """A seat for one program now, the attached nodes by turns."""
        while self._ready:
            seat = self._ready.popleft()
            if seat.credits:
                seat.credits -= 1
                seat.leased += 1
                if seat.credits:
                    self._ready.append(seat)
                return seat
        return None

    async def _wait(self, client: str, *, bounded: bool, first: bool) -> _Seat:
        if self._closed:
            raise NodeLostError("the service ends")
        waiter: _Waiter = asyncio.get_running_loop().create_future()
        self._queue.limit = self.queue_limit
        entry, dropped = self._queue.put(client, waiter, bounded=bounded, first=first)
        if entry is None:
            self.refused += 1
            raise QueueFullError(self._retry_after())
        if dropped is not None and not dropped.item.done():
            self.refused += 1
            dropped.item.set_exception(QueueFullError(self._retry_after()))
        if not self._seats and self._giving_up is None:
            self._wait_for_a_node()
        try:
            return await waiter
        except asyncio.CancelledError:
            self._withdraw(entry)
            raise

    def _withdraw(self, entry: Entry[_Waiter]) -> None:
        self._queue.remove(entry)
        waiter = entry.item
        if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
            # It was given a seat in the same moment.
            seat = waiter.result()
            seat.leased -= 1
            self.give(seat.node, 1)

    def _retry_after(self) -> float:
        """About when the queue will have moved on by a good part, seconds."""
        rate = max(1, self.slots) / max(self._mean_seconds, 0.001)
        return min(10.0, max(0.05, len(self._queue) / 4 / rate))

    def _wait_for_a_node(self) -> None:
        loop = asyncio.get_running_loop()
        self._giving_up = loop.call_later(self.settings.patience_seconds, self._fail_waiting)

    def _fail_waiting(self) -> None:
        self._giving_up = None
        while (entry := self._queue.pop()) is not None:
            if not entry.item.done():
                entry.item.set_exception(NodeLostError("no node is attached"))
