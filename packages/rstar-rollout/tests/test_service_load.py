"""A thousand rollouts at once through gRPC: each delivered once, memory bounded, cancellation and drain complete."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass

import grpc
import grpc.aio
import pytest

from rstar_model.chat_format import ChatFormat
from rstar_model.tokenizer import Tokenizer
from rstar_model.tools import PYTHON_TOOL
from rstar_model.trajectory import Trajectory
from rstar_model.types import EndReason, ToolStatus
from rstar_protos.errors import ServiceUnavailableError
from rstar_protos.rollout.v1 import rollout_pb2, rollout_pb2_grpc
from rstar_protos.service import ServeSettings, open_channel, start_server
from rstar_protos.service.server import RunningServer
from rstar_rollout.agent_loop import AgentLoop
from rstar_rollout.client import RolloutClient
from rstar_rollout.engines.base import GenerationRequest
from rstar_rollout.engines.pool import EnginePool
from rstar_rollout.engines.scripted import ScriptedEngine
from rstar_rollout.limits import ProblemRequest, RolloutLimits, SamplingSettings, ToolSettings
from rstar_rollout.scheduler.policies import KvBalanced
from rstar_rollout.service import RolloutServicer
from rstar_rollout.tool_executor import ToolInvocation, ToolResult

CALL = (
    '<tool_call>{"name": "execute_python_code_with_standard_io", "arguments": {"code": "1", "input": ""}}</tool_call>'
)
LIMITS = RolloutLimits(max_turns=4, max_response_tokens=4000)
MANY = 1000


class Tools:
    """Answers at the loop's next turn, so that rollouts wait for tools too."""

    specs = (PYTHON_TOOL,)

    async def execute(self, invocation: ToolInvocation) -> ToolResult:
        await asyncio.sleep(0)
        return ToolResult(ToolStatus.OK, "1")


@dataclass
class Service:
    """A running service over two scripted engines that finish turns while ``hold`` is set."""

    engines: list[ScriptedEngine]
    pool: EnginePool
    hold: asyncio.Event
    server: RunningServer
    client: RolloutClient

    async def collect(self, streams: int, rollouts: int) -> list[Trajectory]:
        """All trajectories of several requests at once."""

        async def one(index: int) -> list[Trajectory]:
            problems = [ProblemRequest(f"p{index}-{n}", f"g{index}-{n}", "1+1?", 10) for n in range(rollouts // 10)]
            return [t async for t in self.client.generate_groups(problems, SamplingSettings(), LIMITS, ToolSettings())]

        return [t for ts in await asyncio.gather(*(one(index) for index in range(streams))) for t in ts]

    def running(self) -> int:
        return sum(len(engine.requests) for engine in self.engines)

    async def until_running(self, count: int) -> None:
        while self.running() < count:  # noqa: ASYNC110  nothing announces it
            await asyncio.sleep(0.001)


@pytest.fixture
async def service(chat_format: ChatFormat, tokenizer: Tokenizer) -> AsyncIterator[Service]:
    hold = asyncio.Event()
    call, answer = tokenizer.encode(f"{CALL}<|im_end|>"), tokenizer.encode("<answer>2</answer><|im_end|>")

    def script(asked: GenerationRequest) -> list[int]:
        return call if asked.noise.turn < 2 else answer

    engines = [ScriptedEngine(script, deterministic=False, hold=hold) for _ in range(2)]
    waiting = list(engines)
    pool = EnginePool([waiting.pop, waiting.pop], KvBalanced(), slots=MANY)
    await pool.start()
    loop = AgentLoop(pool, chat_format, tokenizer, Tools())

    def register(server: grpc.aio.Server) -> None:
        rollout_pb2_grpc.add_RolloutServiceServicer_to_server(RolloutServicer(loop), server)

    # Socket paths are short; the test's own folder may be too deep.
    socket = f"unix:/tmp/rstar-{uuid.uuid4().hex[:12]}.sock"
    server = await start_server(ServeSettings(listen=socket), register, [rollout_pb2.DESCRIPTOR])
    channel = open_channel(server.listening)
    yield Service(engines, pool, hold, server, RolloutClient(channel, patience_seconds=1.0))
    hold.set()
    await channel.close()
    await server.stop(0)
    await pool.shutdown()


async def test_a_thousand_rollouts_run_at_once_and_arrive_once_each(service: Service):
    collecting = asyncio.create_task(service.collect(streams=10, rollouts=MANY // 10))
    await service.until_running(MANY)
    running = [state.running for state in await service.pool.states()]
    assert sum(running) == MANY
    assert min(running) > 0.4 * MANY
    service.hold.set()
    trajectories = await collecting
    assert len({t.trajectory_id for t in trajectories}) == len(trajectories) == MANY
    assert {t.end_reason for t in trajectories} == {EndReason.ANSWERED}
    assert {(t.turns, len(t.tool_calls)) for t in trajectories} == {(3, 2)}


async def test_memory_does_not_grow_with_the_rollouts_served(service: Service):
    service.hold.set()

    async def serve() -> int:
        await service.collect(streams=5, rollouts=100)
        for engine in service.engines:  # the test's own records
            engine.requests.clear()
            engine.released.clear()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        await serve()
        before = await serve()
        after = 0
        for _ in range(3):
            after = await serve()
    finally:
        tracemalloc.stop()
    assert after - before < 1_000_000  # bytes; one trajectory of the 1,500 takes about 10,000


async def test_a_client_that_goes_away_frees_every_rollout(service: Service):
    collecting = asyncio.create_task(service.collect(streams=4, rollouts=MANY // 4))
    await service.until_running(MANY)
    collecting.cancel()
    await asyncio.gather(collecting, return_exceptions=True)
    while (await service.pool.state()).running:  # noqa: ASYNC110  the server hears of it in its own time
        await asyncio.sleep(0.001)
    while sum(len(engine.released) for engine in service.engines) < 2 * MANY:  # noqa: ASYNC110  as above
        await asyncio.sleep(0.001)
    state = await service.pool.state()
    assert (state.running, state.waiting) == (0, 0)
    assert service.pool._rollouts == {}


async def test_a_service_that_stops_lets_running_rollouts_finish(service: Service):
    collecting = asyncio.create_task(service.collect(streams=2, rollouts=100))
    await service.until_running(200)
    stopping = asyncio.create_task(service.server.stop(600))  # longer than anything here takes
    await asyncio.sleep(0)  # the stop has begun
    # Refused; a call that comes in just now may be told that it was cancelled.
    with pytest.raises((ServiceUnavailableError, grpc.aio.AioRpcError)):
        await service.client.state()
    assert not collecting.done()
    service.hold.set()
    trajectories = await collecting
    assert len(trajectories) == 200
    assert {t.end_reason for t in trajectories} == {EndReason.ANSWERED}
    await stopping
