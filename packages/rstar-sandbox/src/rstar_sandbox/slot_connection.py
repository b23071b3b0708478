"""The service's end of a slot: a frame out, a frame back, one at a time, without a task or a stream in between."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol, cast

from rstar_sandbox.messages import FRAME_HEADER, pack, unpack

__all__ = ["Owner", "SlotConnection"]

_DEATH_NOTICE_SECONDS = 2.0

Answer = asyncio.Future["dict[str, Any] | None"]


class Owner(Protocol):
    """Whose slot it is."""

    def release(self, slot: SlotConnection) -> None:
        """Takes an idle slot back."""

    def kill(self, slot: SlotConnection) -> None:
        """Has a slot killed that does not answer; its connection then ends."""


class SlotConnection(asyncio.Protocol):
    """The service's end of one slot.

    Args:
        number: of the slot.
        template: that the slot was forked from.
        generation: of the template's zygote.
    """

    def __init__(self, number: int, template: Owner, generation: int) -> None:
        self.number, self.template, self.generation = number, template, generation
        self._loop = asyncio.get_running_loop()
        self.gone: asyncio.Future[bool] = self._loop.create_future()
        """Done when the slot has ended: True when the zygote lives on and says so."""
        self.is_open = False
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._answer: Answer | None = None

    def exchange(self, frame: dict[str, Any]) -> Answer:
        """Sends a frame; the future is done with the answer, or with None when the slot is gone."""
        answer: Answer = self._loop.create_future()
        if self.is_open and self._transport is not None:
            self._answer = answer
            self._transport.write(pack(frame))
        else:
            answer.set_result(None)
        return answer

    def tell(self, frame: dict[str, Any]) -> None:
        """Sends a frame that has no answer of its own."""
        if self.is_open and self._transport is not None:
            self._transport.write(pack(frame))

    def close(self) -> None:
        """Closes the connection; the slot ends by it."""
        self.is_open = False
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Ends the connection at once, unsent bytes and all; whoever waits for an answer is told that there is none."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    async def died_alone(self) -> bool:
        """Whether the zygote outlived the slot and says so."""
        done, _ = await asyncio.wait({self.gone}, timeout=_DEATH_NOTICE_SECONDS)
        return bool(done) and self.gone.result()

    # What the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport, self.is_open = cast("asyncio.Transport", transport), True

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        received = self._received
        received += data
        while len(received) >= FRAME_HEADER.size:
            stop = FRAME_HEADER.size + FRAME_HEADER.unpack_from(received)[0]
            if len(received) < stop:
                return
            frame = unpack(bytes(received[FRAME_HEADER.size : stop]))
            del received[:stop]
            self._give(frame)

    def connection_lost(self, error: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self.is_open = False
        self._give(None)

    def _give(self, frame: dict[str, Any] | None) -> None:
        answer, self._answer = self._answer, None
        if answer is not None and not answer.done():  # nobody waits for it any more
            answer.set_result(frame)
