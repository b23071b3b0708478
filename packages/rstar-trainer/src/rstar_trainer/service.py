"""TrainerService: watching and steering a running job from outside."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio

from rstar_protos.trainer.v1 import trainer_pb2, trainer_pb2_grpc
from rstar_trainer.metrics_log import MetricsLog, Record

__all__ = ["RunControl", "TrainerServicer"]


@dataclass
class RunControl:
    """What the pipeline shows and what it is asked for. Owned by the event loop of the run.

    Attributes:
        run_id: name and seed of the run.
        run_dir: its folder.
        stage: the stage under way.
        step: steps done in it.
        stage_steps: steps it has.
        global_step: steps done in the run.
        phase: "rollout", "update", "evaluate", ...
        stop_requested: set: end after the current step, with a checkpoint.
        checkpoint_requested: set: write one after the current step.
    """

    run_id: str
    run_dir: Path
    stage: str = ""
    step: int = 0
    stage_steps: int = 0
    global_step: int = 0
    phase: str = "starting"
    stop_requested: asyncio.Event = field(default_factory=asyncio.Event)
    checkpoint_requested: asyncio.Event = field(default_factory=asyncio.Event)


class TrainerServicer(trainer_pb2_grpc.TrainerServiceServicer):
    """Answers from the run's control object and metrics log.

    Args:
        control: shared with the pipeline.
        log: of the run.
    """

    def __init__(self, control: RunControl, log: MetricsLog) -> None:
        self._control = control
        self._log = log

    async def GetStatus(
        self, request: trainer_pb2.GetStatusRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> trainer_pb2.GetStatusResponse:
        """Where the run is."""
        control = self._control
        return trainer_pb2.GetStatusResponse(
            run_id=control.run_id,
            run_dir=str(control.run_dir),
            stage=control.stage,
            step=control.step,
            stage_steps=control.stage_steps,
            global_step=control.global_step,
            phase=control.phase,
            stopping=control.stop_requested.is_set(),
        )

    async def StreamMetrics(
        self, request: trainer_pb2.StreamMetricsRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[trainer_pb2.MetricsRecord]:
        """The records of the log from a step on; with `follow` until the run ends."""
        async for record in self._log.stream(request.from_global_step, follow=request.follow):
            yield _to_proto(record)

    async def RequestCheckpoint(
        self, request: trainer_pb2.RequestCheckpointRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> trainer_pb2.RequestCheckpointResponse:
        """Asks for a checkpoint after the current step; asking twice is asking once."""
        self._control.checkpoint_requested.set()
        return trainer_pb2.RequestCheckpointResponse(global_step=self._control.global_step + 1)

    async def RequestStop(
        self, request: trainer_pb2.RequestStopRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> trainer_pb2.RequestStopResponse:
        """Asks the run to end after the current step, with a checkpoint."""
        self._control.stop_requested.set()
        return trainer_pb2.RequestStopResponse()


def _to_proto(record: Record) -> trainer_pb2.MetricsRecord:
    return trainer_pb2.MetricsRecord(
        global_step=record.global_step,
        stage=record.stage,
        kind=record.kind,
        values=dict(record.values),
        text=record.text,
    )
