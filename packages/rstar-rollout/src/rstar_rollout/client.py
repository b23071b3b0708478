"""Clients of RolloutService and SamplingService, in this project's own types. No torch needed."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import grpc
import grpc.aio

from rstar_model.trajectory import Trajectory, trajectory_from_proto
from rstar_protos.errors import ServiceUnavailableError, UserInputError
from rstar_protos.rollout.v1 import rollout_pb2, rollout_pb2_grpc
from rstar_protos.sampling.v1 import sampling_pb2, sampling_pb2_grpc
from rstar_protos.service import call_with_retry
from rstar_rollout.engines.base import EngineNotReadyError, EngineState, WeightUpdateError
from rstar_rollout.limits import ProblemRequest, RolloutLimits, SamplingSettings, ToolSettings
from rstar_rollout.roc import DEFAULT_EPSILON, DEFAULT_MINIMUM, Mode, Resampled, ScoredRollout
from rstar_rollout.roc_groups import GroupSelection
from rstar_rollout.sampling_service import mode_to_proto, resampled_from_proto, scored_to_proto, selection_from_proto
from rstar_rollout.wire import engine_state_from_proto, generate_request

__all__ = ["Manifest", "Progress", "RolloutClient", "SamplingClient", "ServiceState"]

_WEIGHT_SECONDS = 600.0


class Manifest(Protocol):
    """What is needed of a weight manifest; that of rstar-model comes with torch, which clients can do without."""

    @property
    def version(self) -> int:
        """Of the weights."""

    @property
    def checksum(self) -> str:
        """Of the tensors as stored."""

    @property
    def path(self) -> Path:
        """Folder that holds them."""


@dataclass(frozen=True)
class Progress:
    """How far a request has come."""

    rollouts_total: int
    rollouts_finished: int
    tokens_generated: int


@dataclass(frozen=True)
class ServiceState:
    """What a rollout service runs."""

    engines: tuple[EngineState, ...]
    chat_format: str

    @property
    def weight_version(self) -> int:
        """The oldest version among the engines."""
        return min((engine.weight_version for engine in self.engines), default=0)


class RolloutClient:
    """Asks a RolloutService for trajectories.

    Args:
        channel: from `rstar_protos.service.open_channel`.
        patience_seconds: how long short calls go on trying while the service is away.
    """

    def __init__(self, channel: grpc.aio.Channel, *, patience_seconds: float = 60.0) -> None:
        self._stub = rollout_pb2_grpc.RolloutServiceStub(channel)
        self._patience = patience_seconds

    async def generate_groups(
        self,
        problems: Sequence[ProblemRequest],
        sampling: SamplingSettings | None = None,
        limits: RolloutLimits | None = None,
        tools: ToolSettings | None = None,
        expected_weight_version: int = 0,
        *,
        stop_after_groups: int = 0,
        request_id: str | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> AsyncIterator[Trajectory]:
        """Yield trajectories as they finish. Closing the iterator early cancels the rest.

        Args:
            problems: what to roll out.
            sampling, limits, tools: settings; None: the defaults.
            expected_weight_version: refuse other weights; 0: any.
            stop_after_groups: when the rollouts of so many groups have ended, stop the others; they come as CANCELLED
                with what they have, for `ProblemRequest.partial` of a later request. 0: wait for all.
            request_id: for `cancel`; None: a new one.
            on_progress: called about once a second.

        Raises:
            EngineNotReadyError: other weights, or an update under way or failed.
            ServiceUnavailableError: the service went away; trajectories yielded so far are valid.
            UserInputError: the service refused the request as unusable.
        """
        await self.state()  # waits, within the patience, for a service that is being restarted
        call = self._stub.GenerateGroups(
            generate_request(
                request_id or uuid.uuid4().hex,
                problems,
                sampling or SamplingSettings(),
                limits or RolloutLimits(),
                tools or ToolSettings(),
                expected_weight_version,
                stop_after_groups,
            )
        )
        try:
            async for event in call:
                if event.WhichOneof("event") == "trajectory":
                    yield trajectory_from_proto(event.trajectory)
                elif on_progress is not None:
                    p = event.progress
                    on_progress(Progress(p.rollouts_total, p.rollouts_finished, p.tokens_generated))
        except grpc.aio.AioRpcError as error:
            raise _translated(error) from error
        finally:
            call.cancel()

    async def update_weights(self, manifest: Manifest) -> float:
        """Have the engine load the folder of a `rstar_model.weights.WeightManifest`, which it must be able to read.

        Returns:
            Seconds that the engine took.

        Raises:
            WeightUpdateError: it could not; generation is refused until an update succeeds.
        """
        source = rollout_pb2.FileSource(path=_absolute(manifest.path))
        try:
            await call_with_retry(
                self._stub.BeginWeightUpdate,
                rollout_pb2.BeginWeightUpdateRequest(version=manifest.version, file=source),
                timeout_s=_WEIGHT_SECONDS,
                patience_s=self._patience,
            )
            response = await self._stub.CommitWeightUpdate(
                rollout_pb2.CommitWeightUpdateRequest(version=manifest.version, checksum=manifest.checksum),
                timeout=_WEIGHT_SECONDS,
            )
        except grpc.aio.AioRpcError as error:
            if error.code() == grpc.StatusCode.FAILED_PRECONDITION:
                raise WeightUpdateError(str(error.details())) from error
            raise _translated(error) from error
        return float(response.seconds)

    async def state(self) -> ServiceState:
        """State of the service's engines."""
        response = await call_with_retry(
            self._stub.GetEngineState,
            rollout_pb2.GetEngineStateRequest(),
            timeout_s=30.0,
            patience_s=self._patience,
        )
        return ServiceState(tuple(engine_state_from_proto(engine) for engine in response.engines), response.chat_format)

    async def pause(self, *, abort: bool = False) -> None:
        """Let running requests finish; requests that come later wait.

        Args:
            abort: end them as CANCELLED, with what they have; `ProblemRequest.partial` goes on with them.
        """
        mode = rollout_pb2.PauseRequest.MODE_ABORT if abort else rollout_pb2.PauseRequest.MODE_DRAIN
        await self._stub.Pause(rollout_pb2.PauseRequest(mode=mode))

    async def resume(self) -> None:
        """Let requests begin again."""
        await self._stub.Resume(rollout_pb2.ResumeRequest())

    async def sleep(self) -> None:
        """Let the engines give memory back; nothing is generated until `wake`.

        Raises:
            EngineNotReadyError: requests are running, or the engines were not started for it.
        """
        await self._short(self._stub.Sleep, rollout_pb2.SleepRequest())

    async def wake(self) -> None:
        """Let the engines take the memory again; for those that are awake nothing changes."""
        await self._short(self._stub.Wake, rollout_pb2.WakeRequest())

    async def _short(self, method: Callable[..., Any], request: Any) -> None:
        try:
            await call_with_retry(method, request, timeout_s=_WEIGHT_SECONDS, patience_s=self._patience)
        except grpc.aio.AioRpcError as error:
            raise _translated(error) from error

    async def cancel(self, request_id: str) -> int:
        """End the rollouts of a request; returns how many were still to come."""
        response = await self._stub.CancelRollouts(rollout_pb2.CancelRolloutsRequest(request_id=request_id))
        return int(response.cancelled)


class SamplingClient:
    """Asks a SamplingService which rollouts of a group to keep.

    Args:
        channel: from `rstar_protos.service.open_channel`.
        patience_seconds: how long to go on trying while the service is away.
    """

    def __init__(self, channel: grpc.aio.Channel, *, patience_seconds: float = 60.0) -> None:
        self._stub = sampling_pb2_grpc.SamplingServiceStub(channel)
        self._patience = patience_seconds

    async def resample(
        self,
        group_id: str,
        scored: Sequence[ScoredRollout],
        keep: int,
        seed: int,
        epsilon: float = DEFAULT_EPSILON,
        enabled: bool = True,
        *,
        mode: Mode = Mode.PAPER,
        minimum_positives: int = DEFAULT_MINIMUM,
        minimum_negatives: int = DEFAULT_MINIMUM,
    ) -> Resampled:
        """See `rstar_rollout.roc.resample_on_correct`."""
        try:
            response = await call_with_retry(
                self._stub.ResampleGroup,
                sampling_pb2.ResampleGroupRequest(
                    request_id=uuid.uuid4().hex,
                    group_id=group_id,
                    rollouts=[scored_to_proto(rollout) for rollout in scored],
                    keep=keep,
                    seed=seed,
                    epsilon=epsilon,
                    enabled=enabled,
                    mode=mode_to_proto(mode),
                    min_positives=minimum_positives,
                    min_negatives=minimum_negatives,
                ),
                timeout_s=30.0,
                patience_s=self._patience,
            )
        except grpc.aio.AioRpcError as error:
            raise _translated(error) from error
        return resampled_from_proto(response)

    async def select_groups(
        self, groups: Mapping[str, bool], wanted: int, *, rounds_done: int = 0, max_rounds: int = 0
    ) -> GroupSelection:
        """See `rstar_rollout.roc_groups.select_groups`."""
        try:
            response = await call_with_retry(
                self._stub.SelectGroups,
                sampling_pb2.SelectGroupsRequest(
                    request_id=uuid.uuid4().hex,
                    groups=[
                        sampling_pb2.SelectGroupsRequest.Group(group_id=group_id, rejected=rejected)
                        for group_id, rejected in groups.items()
                    ],
                    wanted=wanted,
                    round=rounds_done,
                    max_rounds=max_rounds,
                ),
                timeout_s=30.0,
                patience_s=self._patience,
            )
        except grpc.aio.AioRpcError as error:
            raise _translated(error) from error
        return selection_from_proto(response)


def _absolute(path: Path) -> str:
    """The service may run in another working directory."""
    return str(Path(path).resolve())


def _translated(error: grpc.aio.AioRpcError) -> Exception:
    code, details = error.code(), str(error.details())
    if code == grpc.StatusCode.FAILED_PRECONDITION:
        return EngineNotReadyError(details)
    if code == grpc.StatusCode.INVALID_ARGUMENT:
        return UserInputError.message(details)
    return ServiceUnavailableError(f"{code.name}: {details}")
