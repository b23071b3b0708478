"""RolloutService: a thin shell around the agent loop and its engine."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import grpc
import grpc.aio

from rstar_model.trajectory import Trajectory, trajectory_to_proto
from rstar_protos.errors import InfrastructureError, UserInputError
from rstar_protos.rollout.v1 import rollout_pb2, rollout_pb2_grpc
from rstar_rollout.agent_loop import AgentLoop, RolloutBatch
from rstar_rollout.engines.base import EngineError, EngineNotReadyError, WeightUpdateError
from rstar_rollout.metrics import count_continued, record
from rstar_rollout.wire import (
    engine_state_to_proto,
    limits_from_proto,
    problems_from_proto,
    sampling_from_proto,
    source_from_proto,
    tools_from_proto,
)

__all__ = ["RolloutServicer"]

_Context = grpc.aio.ServicerContext[object, object]
_PROGRESS_SECONDS = 1.0
_UNSENT = 16  # finished trajectories that may wait for a slow reader before generation waits too


class RolloutServicer(rollout_pb2_grpc.RolloutServiceServicer):
    """Serves one engine.

    With a deterministic engine requests run one after another, so that none changes another's batches.
    """

    def __init__(self, loop: AgentLoop) -> None:
        self._loop = loop
        self._engine = loop.engine
        self._turn = asyncio.Lock()
        self._running: dict[str, RolloutBatch] = {}
        self._idle = asyncio.Event()
        self._idle.set()
        self._open = asyncio.Event()
        self._open.set()
        self._updating: int | None = None
        self._update_error = ""

    async def GenerateGroups(
        self, request: rollout_pb2.GenerateGroupsRequest, context: _Context
    ) -> AsyncIterator[rollout_pb2.GenerateGroupsResponse]:
        """Stream trajectories as they finish, and progress once a second."""
        try:
            batch = self._loop.batch(
                problems_from_proto(request.problems),
                sampling_from_proto(request.sampling),
                limits_from_proto(request.limits),
                tools_from_proto(request.tools),
                stop_after_groups=request.stop_after_groups,
            )
        except UserInputError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        if not request.request_id:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "request_id: must not be empty")
        await self._open.wait()
        if request.request_id in self._running:
            await context.abort(grpc.StatusCode.ALREADY_EXISTS, f"request {request.request_id} is running")
        # From here on it counts as running: whoever pauses the service while the engine is asked waits for it.
        self._running[request.request_id] = batch
        self._idle.clear()
        try:
            await self._check_ready(request, context)
            count_continued(batch.continued)
            async with self._turn if self._engine.deterministic else contextlib.nullcontext():
                async for event in self._events(batch):
                    yield event
        except EngineNotReadyError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except InfrastructureError as error:
            await context.abort(grpc.StatusCode.INTERNAL, str(error))
        finally:
            del self._running[request.request_id]
            if not self._running:
                self._idle.set()

    async def _check_ready(self, request: rollout_pb2.GenerateGroupsRequest, context: _Context) -> None:
        if self._updating is not None:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"weight update to {self._updating} is under way")
        if self._update_error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, self._update_error)
        version = (await self._engine.state()).weight_version
        if request.expected_weight_version not in (0, version):
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"weight version is {version}, expected {request.expected_weight_version}",
            )

    async def _check_idle(self, context: _Context) -> None:
        if self._running:
            await context.abort(
                grpc.StatusCode.FAILED_PRECONDITION, f"{len(self._running)} requests are running: pause first"
            )

    async def _events(self, batch: RolloutBatch) -> AsyncIterator[rollout_pb2.GenerateGroupsResponse]:
        """Trajectories from a task of their own, so that progress goes out while a round is running."""
        queue: asyncio.Queue[Trajectory | None] = asyncio.Queue(_UNSENT)

        async def produce() -> None:
            try:
                # Typed as iterator, is a generator.
                async with contextlib.aclosing(batch.__aiter__()) as trajectories:  # type: ignore[type-var]
                    async for trajectory in trajectories:
                        await queue.put(trajectory)
            finally:
                with contextlib.suppress(asyncio.QueueFull):
                    queue.put_nowait(None)

        producer = asyncio.create_task(produce())
        before, finished, last = self._engine.tokens_generated, 0, 0.0

        def progress() -> rollout_pb2.GenerateGroupsResponse:
            return rollout_pb2.GenerateGroupsResponse(
                progress=rollout_pb2.Progress(
                    rollouts_total=len(batch),
                    rollouts_finished=finished,
                    tokens_generated=self._engine.tokens_generated - before,
                )
            )

        try:
            while not (producer.done() and queue.empty()):
                with contextlib.suppress(asyncio.TimeoutError):
                    trajectory = await asyncio.wait_for(queue.get(), _PROGRESS_SECONDS)
                    if trajectory is None:
                        continue
                    finished += 1
                    record(trajectory)
                    yield rollout_pb2.GenerateGroupsResponse(trajectory=trajectory_to_proto(trajectory))
                if time.monotonic() - last >= _PROGRESS_SECONDS:
                    last = time.monotonic()
                    yield progress()
            await producer
            yield progress()
        finally:
            producer.cancel()
            await asyncio.gather(producer, return_exceptions=True)

    async def CancelRollouts(
        self, request: rollout_pb2.CancelRolloutsRequest, context: _Context
    ) -> rollout_pb2.CancelRolloutsResponse:
        """End the rollouts of a request; its stream delivers them as CANCELLED."""
        batch = self._running.get(request.request_id)
        if batch is None:
            return rollout_pb2.CancelRolloutsResponse(cancelled=0)
        return rollout_pb2.CancelRolloutsResponse(cancelled=batch.cancel())

    async def Pause(self, request: rollout_pb2.PauseRequest, context: _Context) -> rollout_pb2.PauseResponse:
        """Let no new request begin, and return when none is running. Requests that come in wait."""
        self._open.clear()
        if request.mode == rollout_pb2.PauseRequest.MODE_ABORT:
            for batch in list(self._running.values()):
                batch.cancel()
        await self._idle.wait()
        return rollout_pb2.PauseResponse()

    async def Resume(self, request: rollout_pb2.ResumeRequest, context: _Context) -> rollout_pb2.ResumeResponse:
        """Let requests begin again."""
        self._open.set()
        return rollout_pb2.ResumeResponse()

    async def BeginWeightUpdate(
        self, request: rollout_pb2.BeginWeightUpdateRequest, context: _Context
    ) -> rollout_pb2.BeginWeightUpdateResponse:
        """Refuse generation until a commit succeeds."""
        await self._check_idle(context)
        try:
            await self._engine.begin_weight_update(request.version, source_from_proto(request))
        except WeightUpdateError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        self._updating = request.version
        return rollout_pb2.BeginWeightUpdateResponse()

    async def CommitWeightUpdate(
        self, request: rollout_pb2.CommitWeightUpdateRequest, context: _Context
    ) -> rollout_pb2.CommitWeightUpdateResponse:
        """Take the weights over; after a failure generation stays refused until another update succeeds."""
        started = time.monotonic()
        try:
            await self._engine.commit_weight_update(request.version, request.checksum)
        except WeightUpdateError as error:
            if self._updating is not None:
                self._update_error = f"the last weight update failed: {error}"
            self._updating = None
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        self._updating, self._update_error = None, ""
        return rollout_pb2.CommitWeightUpdateResponse(version=request.version, seconds=time.monotonic() - started)

    async def Sleep(self, request: rollout_pb2.SleepRequest, context: _Context) -> rollout_pb2.SleepResponse:
        """Let the engines give memory back; nothing is generated until they are woken."""
        await self._check_idle(context)
        try:
            await self._engine.sleep()
        except EngineError as error:
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        return rollout_pb2.SleepResponse()

    async def Wake(self, request: rollout_pb2.WakeRequest, context: _Context) -> rollout_pb2.WakeResponse:
        """Let the engines take the memory again."""
        await self._engine.wake()
        return rollout_pb2.WakeResponse()

    async def GetEngineState(
        self, request: rollout_pb2.GetEngineStateRequest, context: _Context
    ) -> rollout_pb2.GetEngineStateResponse:
        """State of the engine and the chat format's name."""
        engines = [engine_state_to_proto(state) for state in await self._engine.states()]
        for engine in engines:
            engine.paused = engine.paused or not self._open.is_set()
        return rollout_pb2.GetEngineStateResponse(engines=engines, chat_format=self._loop.chat_format.name)
