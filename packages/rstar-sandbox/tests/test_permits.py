"""Permits: as many at once as there are, in order."""

from __future__ import annotations

import asyncio

import pytest

from rstar_sandbox.executor import SlotLostError
from rstar_sandbox.permits import Permits


async def test_permits_are_given_in_the_order_of_asking() -> None:
    permits, order = Permits(1), []
    await permits.acquire()

    async def ask(number: int) -> None:
        await permits.acquire()
        order.append(number)

    tasks = [asyncio.ensure_future(ask(number)) for number in range(3)]
    await asyncio.sleep(0)
    assert permits.waiting == 3
    for _ in range(3):
        permits.release()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert order == [0, 1, 2]
    assert (permits.free, permits.waiting) == (0, 0)


async def test_a_waiter_that_gives_up_takes_no_permit_with_it() -> None:
    permits = Permits(1)
    await permits.acquire()
    waiter = asyncio.ensure_future(permits.acquire())
    await asyncio.sleep(0)
    permits.release()  # given to the waiter, which is cancelled before it runs
    waiter.cancel()
    await asyncio.gather(waiter, return_exceptions=True)
    await asyncio.wait_for(permits.acquire(), 10)


async def test_waiters_are_turned_away_at_the_end() -> None:
    permits = Permits(0)
    waiter = asyncio.ensure_future(permits.acquire())
    await asyncio.sleep(0)
    permits.close()
    with pytest.raises(SlotLostError):
        await waiter
    with pytest.raises(SlotLostError):
        await permits.acquire()
