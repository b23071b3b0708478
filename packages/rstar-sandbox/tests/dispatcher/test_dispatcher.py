"""Credits, leases and epochs, over nodes that the tests hold in their hands."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from rstar_protos.common.v1 import common_pb2
from rstar_protos.sandbox.v1 import sandbox_pb2
from rstar_sandbox.dispatcher.dispatcher import Dispatcher, DispatchSettings
from rstar_sandbox.nodes import NodeLostError
from rstar_sandbox.refusals import QueueFullError

Request = sandbox_pb2.ExecuteRequest
Response = sandbox_pb2.ExecuteResponse


@dataclass(eq=False)
class HeldNode:
    """Keeps what it is given until a test answers it."""

    name: str = "node"
    slots: int = 2
    max_sessions: int = 0
    isolation: str = "full"
    remote: bool = True
    held: dict[str, asyncio.Future[Response]] = field(default_factory=dict)
    epochs: dict[str, int] = field(default_factory=dict)
    cancelled: list[str] = field(default_factory=list)

    async def execute(self, request: Request, epoch: int) -> Response:
        self.held[request.request_id] = asyncio.get_running_loop().create_future()
        self.epochs[request.request_id] = epoch
        try:
            return await self.held[request.request_id]
        except asyncio.CancelledError:
            self.cancelled.append(request.request_id)
            raise
        finally:
            del self.held[request.request_id]

    def answer(self, request_id: str) -> None:
        self.held[request_id].set_result(Response(request_id=request_id, status=common_pb2.TOOL_STATUS_OK))

    def die(self) -> None:
        for held in self.held.values():
            held.set_exception(NodeLostError("died"))

    async def open_session(self, request: sandbox_pb2.OpenSessionRequest) -> sandbox_pb2.OpenSessionResponse:
        raise NotImplementedError

    async def execute_cell(self, request: sandbox_pb2.ExecuteCellRequest) -> Response:
        raise NotImplementedError

    async def close_session(self, request: sandbox_pb2.CloseSessionRequest) -> sandbox_pb2.CloseSessionResponse:
        raise NotImplementedError


def _attached(dispatcher: Dispatcher, *nodes: HeldNode) -> None:
    for node in nodes:
        dispatcher.attach(node)
        dispatcher.give(node, node.slots)


def _call(dispatcher: Dispatcher, request_id: str, client: str = "a", **how: bool) -> asyncio.Task[Response]:
    return asyncio.ensure_future(dispatcher.execute(Request(request_id=request_id), client, **how))


async def _settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_node_gets_no_more_than_it_gave_credits_for() -> None:
    dispatcher, node = Dispatcher(), HeldNode(slots=2)
    _attached(dispatcher, node)
    calls = [_call(dispatcher, str(number)) for number in range(5)]
    await _settle()
    assert set(node.held) == {"0", "1"}
    assert (dispatcher.running, dispatcher.queued) == (2, 3)
    node.answer("0")
    dispatcher.give(node, 1)
    await _settle()
    assert set(node.held) == {"1", "2"}
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


async def test_a_node_that_is_done_takes_what_others_have_not() -> None:
    dispatcher, slow, fast = Dispatcher(), HeldNode("slow", 1), HeldNode("fast", 1)
    _attached(dispatcher, slow, fast)
    calls = [_call(dispatcher, str(number)) for number in range(4)]
    await _settle()
    for _ in range(3):
        node = next(node for node in (slow, fast) if node.held and node is not slow)
        node.answer(next(iter(node.held)))
        dispatcher.give(node, 1)
        await _settle()
    assert len(slow.held) == 1
    assert sum(call.done() for call in calls) == 3
    slow.answer(next(iter(slow.held)))
    await asyncio.gather(*calls)


async def test_calls_of_a_dead_node_run_elsewhere_in_the_next_epoch_and_are_answered_once() -> None:
    dispatcher, dying, other = Dispatcher(), HeldNode("dying", 3), HeldNode("other", 3)
    _attached(dispatcher, dying)
    calls = [_call(dispatcher, str(number)) for number in range(3)]
    await _settle()
    _attached(dispatcher, other)
    dispatcher.detach(dying, lost=True)
    dying.die()
    await _settle()
    assert other.epochs == {"0": 2, "1": 2, "2": 2}
    for number in range(3):
        other.answer(str(number))
    assert [(await call).request_id for call in calls] == ["0", "1", "2"]
    assert (dispatcher.retries, dispatcher.nodes_lost, dispatcher.running) == (3, 1, 0)


async def test_a_call_that_lost_its_node_goes_before_those_that_wait() -> None:
    dispatcher, dying, other = Dispatcher(), HeldNode("dying", 1), HeldNode("other", 1)
    _attached(dispatcher, dying)
    calls = [_call(dispatcher, name) for name in ("started", "waiting")]
    await _settle()
    dispatcher.detach(dying, lost=True)
    dying.die()
    await _settle()
    _attached(dispatcher, other)
    await _settle()
    assert set(other.held) == {"started"}
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)


async def test_a_program_that_takes_every_node_with_it_is_unavailable_in_the_end() -> None:
    dispatcher = Dispatcher(DispatchSettings(attempts=3))
    call = _call(dispatcher, "killer")
    for number in range(3):
        node = HeldNode(str(number), 1)
        _attached(dispatcher, node)
        await _settle()
        dispatcher.detach(node, lost=True)
        node.die()
        await _settle()
    answer = await call
    assert answer.status == common_pb2.TOOL_STATUS_UNAVAILABLE
    assert "no worker" in answer.detail


async def test_a_cancelled_call_is_cancelled_on_its_node() -> None:
    dispatcher, node = Dispatcher(), HeldNode(slots=1)
    _attached(dispatcher, node)
    call = _call(dispatcher, "left")
    await _settle()
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    assert node.cancelled == ["left"]
    assert dispatcher.running == 0


async def test_a_cancelled_waiter_takes_no_credit_with_it() -> None:
    dispatcher, node = Dispatcher(), HeldNode(slots=1)
    _attached(dispatcher, node)
    first, leaving, staying = (_call(dispatcher, name) for name in ("first", "leaving", "staying"))
    await _settle()
    # Both in one moment: the seat is given to a call that is just leaving.
    leaving.cancel()
    node.answer("first")
    dispatcher.give(node, 1)
    await asyncio.gather(first, leaving, return_exceptions=True)
    await _settle()
    assert set(node.held) == {"staying"}
    node.answer("staying")
    await staying


async def test_a_seat_given_to_a_call_that_leaves_in_the_same_moment_goes_to_the_next() -> None:
    dispatcher, node = Dispatcher(), HeldNode(slots=1)
    _attached(dispatcher, node)
    first, leaving, staying = (_call(dispatcher, name) for name in ("first", "leaving", "staying"))
    await _settle()
    node.answer("first")
    dispatcher.give(node, 1)
    leaving.cancel()
    await asyncio.gather(first, leaving, return_exceptions=True)
    await _settle()
    assert set(node.held) == {"staying"}
    node.answer("staying")
    await staying


async def test_a_flood_is_refused_with_a_hint_and_its_neighbour_is_not() -> None:
    dispatcher, node = Dispatcher(DispatchSettings(queue_limit=4)), HeldNode(slots=1)
    _attached(dispatcher, node)
    flood = [_call(dispatcher, f"flood-{number}", "flood") for number in range(6)]
    await _settle()
    neighbour = _call(dispatcher, "neighbour", "quiet")
    await _settle()
    refused = [call for call in flood if call.done()]
    assert len(refused) == 2
    for call in refused:
        error = call.exception()
        assert isinstance(error, QueueFullError)
        assert error.retry_after_seconds > 0
    assert not neighbour.done()
    assert dispatcher.refused == 2
    for call in (*flood, neighbour):
        call.cancel()
    await asyncio.gather(*flood, neighbour, return_exceptions=True)


async def test_callers_that_bound_themselves_wait_instead() -> None:
    dispatcher, node = Dispatcher(DispatchSettings(queue_limit=0)), HeldNode(slots=1)
    _attached(dispatcher, node)
    calls = [_call(dispatcher, str(number), wait_for_room=True) for number in range(3)]
    await _settle()
    assert dispatcher.queued == 2
    for number in range(3):
        node.answer(str(number))
        dispatcher.give(node, 1)
        await _settle()
    assert len(await asyncio.gather(*calls)) == 3


async def test_calls_wait_for_a_first_node_and_give_up_without_one() -> None:
    dispatcher = Dispatcher(DispatchSettings(patience_seconds=0.05))
    answer = await _call(dispatcher, "lonely")
    assert answer.status == common_pb2.TOOL_STATUS_UNAVAILABLE


async def test_a_draining_node_gets_nothing_more() -> None:
    dispatcher, draining, other = Dispatcher(), HeldNode("draining", 2), HeldNode("other", 1)
    _attached(dispatcher, draining)
    dispatcher.revoke(draining)
    call = _call(dispatcher, "later")
    await _settle()
    assert not draining.held
    _attached(dispatcher, other)
    await _settle()
    assert set(other.held) == {"later"}
    other.answer("later")
    await call


@pytest.mark.parametrize(("seconds", "expected"), [(0.001, 128 * 4), (0.02, 200), (0.1, 40), (10.0, 16 * 4)])
async def test_the_queue_is_as_long_as_is_worked_off_in_a_second(seconds: float, expected: int) -> None:
    dispatcher = Dispatcher()
    _attached(dispatcher, HeldNode(slots=4))
    dispatcher._mean_seconds = seconds
    assert dispatcher.queue_limit == expected


async def test_the_queue_keeps_its_length_while_nodes_come_back() -> None:
    dispatcher, node = Dispatcher(), HeldNode(slots=8)
    _attached(dispatcher, node)
    before = dispatcher.queue_limit
    dispatcher.detach(node, lost=True)
    assert dispatcher.queue_limit == before


async def test_closing_answers_those_that_wait() -> None:
    dispatcher = Dispatcher()
    call = _call(dispatcher, "waiting")
    await _settle()
    dispatcher.close()
    assert (await call).status == common_pb2.TOOL_STATUS_UNAVAILABLE
