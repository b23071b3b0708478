"""Results by request id."""

from __future__ import annotations

import asyncio

import pytest

from rstar_sandbox.remembered import DifferentRequestError, RememberedResults


class _Work:
    def __init__(self, result: str = "result") -> None:
        self.started = self.cancelled = 0
        self.result = result
        self.go = asyncio.Event()

    async def __call__(self) -> str:
        self.started += 1
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return self.result


def _results(count: int = 10, size: int = 1000) -> RememberedResults[str]:
    return RememberedResults(count, size, size=len, keep=lambda result: result != "fault")


async def test_callers_with_one_id_share_one_run() -> None:
    results, work = _results(), _Work()
    calls = [asyncio.ensure_future(results.answer("id", b"f", work)) for _ in range(3)]
    await asyncio.sleep(0)
    work.go.set()
    assert await asyncio.gather(*calls) == ["result"] * 3
    assert await results.answer("id", b"f", work) == "result"
    assert work.started == 1


async def test_without_an_id_nothing_is_shared() -> None:
    results, work = _results(), _Work()
    work.go.set()
    await asyncio.gather(results.answer("", b"f", work), results.answer("", b"f", work))
    assert work.started == 2


async def test_work_is_cancelled_when_its_last_caller_leaves() -> None:
    results, work = _results(), _Work()
    calls = [asyncio.ensure_future(results.answer("id", b"f", work)) for _ in range(2)]
    await asyncio.sleep(0.01)
    calls[0].cancel()
    await asyncio.wait(calls[:1])
    assert work.cancelled == 0
    calls[1].cancel()
    await asyncio.wait(calls)
    await asyncio.sleep(0)
    assert work.cancelled == 1


async def test_after_a_cancellation_the_same_id_starts_anew() -> None:
    results, work = _results(), _Work()
    call = asyncio.ensure_future(results.answer("id", b"f", work))
    await asyncio.sleep(0.01)
    call.cancel()
    await asyncio.wait({call})
    work.go.set()
    assert await results.answer("id", b"f", work) == "result"
    assert work.started == 2


async def test_a_fault_is_not_remembered() -> None:
    results, work = _results(), _Work("fault")
    work.go.set()
    await results.answer("id", b"f", work)
    await results.answer("id", b"f", work)
    assert work.started == 2


async def test_an_exception_reaches_every_caller_and_is_not_remembered() -> None:
    results = _results()

    async def fail() -> str:
        raise OSError("no")

    for answer in await asyncio.gather(*(results.answer("id", b"f", fail) for _ in range(2)), return_exceptions=True):
        assert isinstance(answer, OSError)
    work = _Work()
    work.go.set()
    assert await results.answer("id", b"f", work) == "result"


@pytest.mark.parametrize("finished", [True, False])
async def test_an_id_for_another_request_is_refused(finished: bool) -> None:
    results, work = _results(), _Work()
    call = asyncio.ensure_future(results.answer("id", b"f", work))
    await asyncio.sleep(0.01)
    if finished:
        work.go.set()
        await call
    with pytest.raises(DifferentRequestError):
        await results.answer("id", b"other", work)
    work.go.set()
    assert await call == "result"


async def test_the_oldest_results_are_forgotten_first() -> None:
    results, works = _results(count=2), [_Work(str(n)) for n in range(3)]
    for number, work in enumerate(works):
        work.go.set()
        await results.answer(str(number), b"f", work)
    for number in (2, 1, 0):
        await results.answer(str(number), b"f", works[number])
    assert [work.started for work in works] == [2, 1, 1]


async def test_results_are_forgotten_by_size() -> None:
    results = _results(size=5)
    works = [_Work("abc"), _Work("defg"), _Work("too large")]
    for number, work in enumerate(works):
        work.go.set()
        await results.answer(str(number), b"f", work)
    await results.answer("1", b"f", works[1])
    await results.answer("2", b"f", works[2])
    await results.answer("0", b"f", works[0])
    assert [work.started for work in works] == [2, 1, 2]
