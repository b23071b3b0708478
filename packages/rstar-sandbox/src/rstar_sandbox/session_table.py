"""The open sessions of a service: sticky, serialised cells, truth about the state."""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import dataclass, field, replace

from rstar_sandbox.executor import Placed
from rstar_sandbox.limits import Limits
from rstar_sandbox.messages import CANCEL, Job, Outcome
from rstar_sandbox.pool import WorkerPool
from rstar_sandbox.slot_connection import SlotConnection

__all__ = ["SessionLostError", "SessionTable", "TooManySessionsError", "UnknownSessionError"]

_ANSWER_GRACE_SECONDS = 15.0
_REMEMBERED_CLOSED = 1024


class UnknownSessionError(Exception):
    """No session has this id: it never had, or it was closed; the text says which."""


class SessionLostError(Exception):
    """The session's state is gone; the text says why."""


class TooManySessionsError(Exception):
    """As many sessions are open as the service allows."""


@dataclass(eq=False)
class _OpenSession:
    slot: SlotConnection
    limits: Limits
    ttl_seconds: float
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    lost: str = ""
    timer: asyncio.TimerHandle | None = None


class SessionTable:
    """Opens, runs and closes sessions."""

    def __init__(self, pool: WorkerPool) -> None:
        self._pool = pool
        self._sessions: dict[str, _OpenSession] = {}
        self._opening = 0
        self._closed: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def limits_of(self, session_id: str) -> Limits:
        """The limits that a session's cells have unless they ask for others.

        Raises:
            UnknownSessionError: no such session.
        """
        return self._get(session_id).limits

    async def open(self, limits: Limits, ttl_seconds: float) -> str:
        """Opens a session and returns its id.

        Raises:
            TooManySessionsError: no room.
            SlotLostError: the worker processes are away.
        """
        if len(self._sessions) + self._opening >= self._pool.settings.max_sessions:
            raise TooManySessionsError
        self._opening += 1
        try:
            slot = await self._pool.lease()
        finally:
            self._opening -= 1
        slot.tell({**Job("", b"", limits, seed=self._pool.settings.seed).frame(), "kind": "session"})
        session_id = uuid.uuid4().hex
        session = _OpenSession(slot, limits, ttl_seconds or self._pool.settings.session_seconds)
        self._sessions[session_id] = session
        self._rearm(session_id, session)
        return session_id

    async def run_cell(self, session_id: str, job: Job) -> Placed:
        """Runs one cell; cells of a session run one after the other.

        Raises:
            UnknownSessionError: no such session.
            SessionLostError: an earlier cell, or the infrastructure, took the state.
        """
        session = self._get(session_id)
        arrived = time.monotonic()
        async with session.lock:
            queue_seconds = time.monotonic() - arrived
            if session.lost:
                raise SessionLostError(session.lost)
            if session_id not in self._sessions:
                raise UnknownSessionError(self._closed.get(session_id, "closed"))
            if session.timer is not None:
                session.timer.cancel()
            outcome = await self._exchange(session, job)
            session.lost = outcome.state_lost
            self._rearm(session_id, session)
            return Placed(outcome, queue_seconds)

    def close(self, session_id: str, reason: str = "closed by the client") -> None:
        """Closes a session; closing it again is harmless.

        Raises:
            UnknownSessionError: the id was never given out.
        """
        session = self._sessions.pop(session_id, None)
        if session is None:
            if session_id in self._closed:
                return
            raise UnknownSessionError("there is no session with this id")
        if session.timer is not None:
            session.timer.cancel()
        self._closed[session_id] = reason
        while len(self._closed) > _REMEMBERED_CLOSED:
            del self._closed[next(iter(self._closed))]
        self._pool.end_lease(session.slot)

    def close_all(self) -> None:
        """Closes every session."""
        for session_id in list(self._sessions):
            self.close(session_id, "the service ended")

    async def _exchange(self, session: _OpenSession, job: Job) -> Outcome:
        try:
            patience = job.limits.wall_seconds + _ANSWER_GRACE_SECONDS
            frame = await asyncio.wait_for(session.slot.exchange(job.frame()), patience)
        except asyncio.TimeoutError:
            frame = None
        except asyncio.CancelledError:
            session.slot.tell(CANCEL)
            session.lost = "a running cell was cancelled"
            raise
        if frame is None:
            reason = "the session's worker was lost"
            return Outcome("unavailable", state_lost=reason, detail=reason)
        outcome = Outcome.from_frame(frame)
        return replace(outcome, detail=outcome.detail or outcome.state_lost)

    def _get(self, session_id: str) -> _OpenSession:
        session = self._sessions.get(session_id)
        if session is None:
            raise UnknownSessionError(self._closed.get(session_id, "there is no session with this id"))
        return session

    def _rearm(self, session_id: str, session: _OpenSession) -> None:
        if session.timer is not None:
            session.timer.cancel()
        loop = asyncio.get_running_loop()
        session.timer = loop.call_later(session.ttl_seconds, self._expire, session_id, session)

    def _expire(self, session_id: str, session: _OpenSession) -> None:
        if session_id not in self._sessions:
            return
        if session.lock.locked():
            self._rearm(session_id, session)
        else:
            self.close(session_id, f"idle for {session.ttl_seconds:g} s")
