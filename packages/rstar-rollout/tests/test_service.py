"""RolloutService over a real socket with the scripted engine."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from pathlib import Path

import grpc
import grpc.aio
import pytest

from rstar_model.chat_format import ChatFormat
from rstar_model.tokenizer import Tokenizer
from rstar_model.types import EndReason, SpanKind
from rstar_protos.errors import ServiceUnavailableError, UserInputError
from rstar_protos.rollout.v1 import rollout_pb2, rollout_pb2_grpc
from rstar_protos.service import ServeSettings, open_channel, start_server
from rstar_rollout.agent_loop import AgentLoop
from rstar_rollout.client import Progress, RolloutClient
from rstar_rollout.engines.base import EngineNotReadyError, GenerationRequest, WeightUpdateError
from rstar_rollout.engines.scripted import ScriptedEngine
from rstar_rollout.limits import ProblemRequest, RolloutLimits, SamplingSettings, ToolSettings
from rstar_rollout.service import RolloutServicer

LIMITS = RolloutLimits(max_turns=3, max_response_tokens=200)
NO_TOOLS = ToolSettings(enabled=False)


@dataclass
class Service:
    """A running service and what it is made of."""

    engine: ScriptedEngine
    hold: asyncio.Event
    channel: grpc.aio.Channel
    client: RolloutClient
    until: Callable[[Callable[[], Awaitable[bool]]], Awaitable[None]]

    def generate(self, samples: int = 4, **options: object):
        problems = [ProblemRequest("p", "g", "1+1?", samples)]
        return self.client.generate_groups(problems, SamplingSettings(seed=1), LIMITS, NO_TOOLS, **options)

    async def until_running(self, count: int) -> None:
        async def running() -> bool:
            return len(self.engine.requests) >= count

        await self.until(running)

    async def idle(self) -> bool:
        return not (await self.client.state()).engines[0].running

    async def paused(self) -> bool:
        return (await self.client.state()).engines[0].paused


@dataclass
class Manifest:
    version: int
    checksum: str
    path: Path


@pytest.fixture
async def serving() -> AsyncIterator[Callable[[AgentLoop], Awaitable[grpc.aio.Channel]]]:
    """Starts services, and stops them in the end."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(loop: AgentLoop) -> grpc.aio.Channel:
            def register(server: grpc.aio.Server) -> None:
                rollout_pb2_grpc.add_RolloutServiceServicer_to_server(RolloutServicer(loop), server)

            # Socket paths are short; the test's own folder may be too deep.
            socket = f"unix:/tmp/rstar-{uuid.uuid4().hex[:12]}.sock"
            running = await start_server(ServeSettings(listen=socket), register, [rollout_pb2.DESCRIPTOR])
            stack.push_async_callback(running.stop, 0)
            channel = open_channel(running.listening)
            stack.push_async_callback(channel.close)
            return channel

        yield start


@pytest.fixture(params=[True, False], ids=["lockstep", "free"])
async def service(
    request: pytest.FixtureRequest, chat_format: ChatFormat, tokenizer: Tokenizer, until, serving
) -> Service:
    hold = asyncio.Event()
    hold.set()

    def script(asked: GenerationRequest) -> list[int]:
        return tokenizer.encode(f"<answer>{asked.noise.sample_index}</answer><|im_end|>")

    engine = ScriptedEngine(script, deterministic=request.param, hold=hold, said_when_aborted=4)
    loop = AgentLoop(engine, chat_format, tokenizer, None)
    channel = await serving(loop)
    return Service(engine, hold, channel, RolloutClient(channel), until)


async def test_trajectories_arrive_once_each_with_final_progress(service: Service):
    seen: list[Progress] = []
    trajectories = [t async for t in service.generate(20, on_progress=seen.append)]
    assert sorted(t.sample_index for t in trajectories) == list(range(20))
    assert all(t.end_reason is EndReason.ANSWERED and t.answer_tags == 1 for t in trajectories)
    assert seen[-1].rollouts_finished == seen[-1].rollouts_total == 20
    assert seen[-1].tokens_generated == sum(t.policy_tokens for t in trajectories)


async def test_first_sample_index_asks_for_lost_samples_alone(service: Service):
    problems = [ProblemRequest("p", "g", "1+1?", samples=2, first_sample_index=5)]
    trajectories = [t async for t in service.client.generate_groups(problems, None, LIMITS, NO_TOOLS)]
    assert sorted(t.trajectory_id for t in trajectories) == ["g/5", "g/6"]


async def test_no_problems_is_an_empty_stream(service: Service):
    assert [t async for t in service.client.generate_groups([], None, LIMITS, NO_TOOLS)] == []


async def test_client_that_goes_away_frees_the_engine(service: Service):
    service.hold.clear()
    stream = service.generate(4)
    task = asyncio.ensure_future(anext(stream))
    await service.until_running(4)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await stream.aclose()
    await service.until(service.idle)
    service.hold.set()
    assert len([t async for t in service.generate(2)]) == 2


async def test_cancel_rollouts_ends_them_as_cancelled(service: Service):
    service.hold.clear()

    async def collect():
        return [t async for t in service.generate(4, request_id="mine")]

    task = asyncio.create_task(collect())
    await service.until_running(4)
    assert await service.client.cancel("mine") == 4
    assert {t.end_reason for t in await task} == {EndReason.CANCELLED}
    assert await service.client.cancel("unknown") == 0


async def test_request_id_in_use_is_refused(service: Service):
    service.hold.clear()
    first = asyncio.ensure_future(anext(service.generate(1, request_id="same")))
    await service.until_running(1)
    stub = rollout_pb2_grpc.RolloutServiceStub(service.channel)
    limits = rollout_pb2.RolloutLimits(max_turns=1, max_response_tokens=9)
    again = rollout_pb2.GenerateGroupsRequest(request_id="same", limits=limits)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stub.GenerateGroups(again).read()
    assert refused.value.code() == grpc.StatusCode.ALREADY_EXISTS
    service.hold.set()
    assert (await first).end_reason is EndReason.ANSWERED


async def test_pause_drains_and_later_requests_wait(service: Service):
    service.hold.clear()
    running = asyncio.ensure_future(anext(service.generate(1)))
    await service.until_running(1)
    pause = asyncio.create_task(service.client.pause())
    await service.until(service.paused)
    assert not pause.done()
    service.hold.set()
    await pause
    assert (await running).end_reason is EndReason.ANSWERED
    later = asyncio.ensure_future(anext(service.generate(1)))
    assert (await service.client.state()).engines[0].paused
    assert not later.done()
    await service.client.resume()
    assert (await later).end_reason is EndReason.ANSWERED


async def test_request_that_is_still_being_checked_counts_as_running(service: Service, monkeypatch: pytest.MonkeyPatch):
    asked, told, state, calls = asyncio.Event(), asyncio.Event(), service.engine.state, itertools.count()

    async def slow_state():
        if next(calls) > 0:  # the client asks first
            asked.set()
            await told.wait()
        return await state()

    monkeypatch.setattr(service.engine, "state", slow_state)
    running = asyncio.ensure_future(anext(service.generate(1)))
    await asked.wait()
    pause = asyncio.create_task(service.client.pause())
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await rollout_pb2_grpc.RolloutServiceStub(service.channel).BeginWeightUpdate(
            rollout_pb2.BeginWeightUpdateRequest(version=2)
        )
    assert "requests are running" in str(refused.value.details())
    assert not pause.done()
    told.set()
    assert (await running).end_reason is EndReason.ANSWERED
    await pause


async def test_pause_with_abort_cancels(service: Service):
    service.hold.clear()
    running = asyncio.ensure_future(anext(service.generate(1)))
    await service.until_running(1)
    await service.client.pause(abort=True)
    assert (await running).end_reason is EndReason.CANCELLED


async def test_what_a_pause_has_stopped_goes_on_with_other_weights(service: Service, tmp_path: Path):
    service.hold.clear()
    running = asyncio.ensure_future(anext(service.generate(1)))
    await service.until_running(1)
    await service.client.pause(abort=True)
    await service.client.update_weights(Manifest(7, "sum", tmp_path))
    await service.client.resume()
    service.hold.set()
    problem = ProblemRequest("p", "g", "1+1?", partial=(await running,))
    trajectory = await anext(service.client.generate_groups([problem], None, LIMITS, NO_TOOLS))
    assert trajectory.end_reason is EndReason.ANSWERED
    assert trajectory.policy_text == "<answer>0</answer><|im_end|>"
    spans = [span for span in trajectory.ledger.spans if span.kind is SpanKind.POLICY]
    assert [(len(span), span.weight_version, span.turn) for span in spans] == [(4, 0, 0), (15, 7, 0)]


async def test_groups_beyond_those_that_are_waited_for_are_stopped(
    chat_format: ChatFormat, tokenizer: Tokenizer, serving
):
    never = asyncio.Event()
    engine = ScriptedEngine(
        lambda _: tokenizer.encode("yes<|im_end|>"),
        deterministic=False,
        hold=never,
        holds=lambda request: request.noise.problem_id == "slow",
        said_when_aborted=2,
    )
    client = RolloutClient(await serving(AgentLoop(engine, chat_format, tokenizer, None)))
    problems = [ProblemRequest(name, name, "?", 2) for name in ("slow", "quick")]
    found = [t async for t in client.generate_groups(problems, None, LIMITS, NO_TOOLS, stop_after_groups=1)]
    ends = {(t.group_id, t.sample_index): (t.end_reason, t.policy_tokens) for t in found}
    assert ends == {
        **{("quick", index): (EndReason.ANSWERED, 4) for index in range(2)},
        **{("slow", index): (EndReason.CANCELLED, 2) for index in range(2)},
    }


async def test_a_stopped_rollout_of_another_prompt_is_an_invalid_argument(service: Service):
    partial = replace(await anext(service.generate(1)), end_reason=EndReason.CANCELLED)
    problem = ProblemRequest("p", "g", "another problem", partial=(partial,))
    with pytest.raises(UserInputError, match="g/0"):
        await anext(service.client.generate_groups([problem], None, LIMITS, NO_TOOLS))


async def test_expected_weight_version_is_checked(service: Service, tmp_path: Path):
    await service.client.update_weights(Manifest(7, "sum", tmp_path))
    assert (await service.client.state()).weight_version == 7
    assert len([t async for t in service.generate(1, expected_weight_version=7)]) == 1
    with pytest.raises(EngineNotReadyError, match="expected 6"):
        await anext(service.generate(1, expected_weight_version=6))


async def test_weight_version_is_recorded_in_the_spans(service: Service, tmp_path: Path):
    await service.client.update_weights(Manifest(7, "sum", tmp_path))
    trajectory = await anext(service.generate(1))
    assert {v for v in trajectory.ledger.weight_versions if v is not None} == {7}


async def test_generation_is_refused_after_a_failed_commit_until_one_succeeds(service: Service, tmp_path: Path):
    with pytest.raises(WeightUpdateError):
        await service.client.update_weights(Manifest(7, "", tmp_path))
    with pytest.raises(EngineNotReadyError):
        await anext(service.generate(1))
    await service.client.update_weights(Manifest(8, "sum", tmp_path))
    assert (await anext(service.generate(1))).end_reason is EndReason.ANSWERED


async def test_generation_is_refused_between_begin_and_commit(service: Service, tmp_path: Path):
    stub = rollout_pb2_grpc.RolloutServiceStub(service.channel)
    source = rollout_pb2.FileSource(path=str(tmp_path))
    await stub.BeginWeightUpdate(rollout_pb2.BeginWeightUpdateRequest(version=3, file=source))
    with pytest.raises(EngineNotReadyError, match="under way"):
        await anext(service.generate(1))
    await stub.CommitWeightUpdate(rollout_pb2.CommitWeightUpdateRequest(version=3, checksum="sum"))
    assert (await anext(service.generate(1))).end_reason is EndReason.ANSWERED


async def test_weights_are_not_updated_under_running_requests(service: Service, tmp_path: Path):
    service.hold.clear()
    running = asyncio.ensure_future(anext(service.generate(1)))
    await service.until_running(1)
    with pytest.raises(WeightUpdateError, match="pause first"):
        await service.client.update_weights(Manifest(2, "sum", tmp_path))
    service.hold.set()
    assert (await running).end_reason is EndReason.ANSWERED


async def test_bad_requests_are_invalid_arguments(service: Service):
    stub = rollout_pb2_grpc.RolloutServiceStub(service.channel)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stub.GenerateGroups(rollout_pb2.GenerateGroupsRequest(request_id="x")).read()
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "max_turns" in str(refused.value.details())


async def test_a_thousand_rollouts_through_one_stream(service: Service):
    problems = [ProblemRequest(f"p{i}", f"g{i}", "1+1?", 10) for i in range(100)]
    ids = [
        t.trajectory_id async for t in service.client.generate_groups(problems, SamplingSettings(), LIMITS, NO_TOOLS)
    ]
    assert len(ids) == len(set(ids)) == 1000


async def test_a_service_that_stays_away_is_an_error_not_a_hang():
    channel = open_channel(f"unix:/tmp/rstar-{uuid.uuid4().hex[:12]}.sock")
    client = RolloutClient(channel, patience_seconds=0.3)
    with pytest.raises(ServiceUnavailableError):
        await anext(client.generate_groups([ProblemRequest("p", "g", "?")], None, LIMITS, NO_TOOLS))
    await channel.close()
