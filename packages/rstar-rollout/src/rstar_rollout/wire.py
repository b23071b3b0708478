"""Between the RolloutService messages and this package's own types."""

from __future__ import annotations

from collections.abc import Sequence

from rstar_model.ledger import LedgerError
from rstar_model.trajectory import Trajectory, trajectory_from_proto, trajectory_to_proto
from rstar_protos.errors import UserInputError
from rstar_protos.rollout.v1 import rollout_pb2
from rstar_protos.service.settings import DEFAULT_MAX_MESSAGE_BYTES
from rstar_rollout.engines.base import EngineState, WeightSource
from rstar_rollout.limits import ProblemRequest, RolloutLimits, SamplingSettings, ToolSettings

__all__ = [
    "engine_state_from_proto",
    "engine_state_to_proto",
    "generate_request",
    "limits_from_proto",
    "problems_from_proto",
    "sampling_from_proto",
    "source_from_proto",
    "tools_from_proto",
]

_DEFAULT_TOOL_SECONDS = ToolSettings().wall_seconds


def generate_request(
    request_id: str,
    problems: Sequence[ProblemRequest],
    sampling: SamplingSettings,
    limits: RolloutLimits,
    tools: ToolSettings,
    expected_weight_version: int = 0,
    stop_after_groups: int = 0,
) -> rollout_pb2.GenerateGroupsRequest:
    """The message of one request.

    Raises:
        UserInputError: so many rollouts to go on with that they do not fit into one message.
    """
    message = rollout_pb2.GenerateGroupsRequest(
        request_id=request_id,
        problems=[
            rollout_pb2.Problem(
                problem_id=problem.problem_id,
                group_id=problem.group_id,
                prompt=problem.prompt,
                samples=problem.samples,
                first_sample_index=problem.first_sample_index,
                partial=[_without_text(partial) for partial in problem.partial],
                must_finish=problem.must_finish,
            )
            for problem in problems
        ],
        sampling=rollout_pb2.SamplingParams(
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            seed=sampling.seed,
            log_probs=sampling.log_probs,
        ),
        limits=rollout_pb2.RolloutLimits(
            max_turns=limits.max_turns,
            max_response_tokens=limits.max_response_tokens,
            max_total_tokens=limits.max_total_tokens,
            max_wall_seconds=limits.max_wall_seconds,
            max_repeated_calls=limits.max_repeated_calls,
            max_tool_output_tokens=limits.max_tool_output_tokens,
        ),
        tools=rollout_pb2.ToolSettings(
            enabled=tools.enabled, wall_seconds=tools.wall_seconds, memory_bytes=tools.memory_bytes
        ),
        expected_weight_version=expected_weight_version,
        stop_after_groups=stop_after_groups,
    )
    if message.ByteSize() > DEFAULT_MAX_MESSAGE_BYTES:
        raise UserInputError("partial", f"{message.ByteSize()} bytes", f"at most {DEFAULT_MAX_MESSAGE_BYTES} a request")
    return message


def _without_text(partial: Trajectory) -> rollout_pb2.Trajectory:
    """The text is decoded anew when the rollout ends."""
    message = trajectory_to_proto(partial)
    message.ClearField("segments")
    return message


def problems_from_proto(messages: Sequence[rollout_pb2.Problem]) -> list[ProblemRequest]:
    """Problems of a request.

    Raises:
        UserInputError: an empty id, or a rollout to go on with that is not one of the samples.
    """
    return [
        ProblemRequest(
            m.problem_id,
            m.group_id,
            m.prompt,
            m.samples,
            m.first_sample_index,
            tuple(_partial_from_proto(partial) for partial in m.partial),
            m.must_finish,
        )
        for m in messages
    ]


def _partial_from_proto(message: rollout_pb2.Trajectory) -> Trajectory:
    try:
        return trajectory_from_proto(message)
    except (LedgerError, ValueError) as error:
        raise UserInputError("partial", f"{message.trajectory_id}: {error}", "a trajectory of this service") from error


def sampling_from_proto(message: rollout_pb2.SamplingParams) -> SamplingSettings:
    """Sampling settings; top_p 0 stands for 1.

    Raises:
        UserInputError: a value out of range.
    """
    return SamplingSettings(
        temperature=message.temperature,
        top_p=message.top_p or 1.0,
        top_k=message.top_k,
        seed=message.seed,
        log_probs=message.log_probs,
    )


def limits_from_proto(message: rollout_pb2.RolloutLimits) -> RolloutLimits:
    """Limits of a request.

    Raises:
        UserInputError: a value out of range.
    """
    return RolloutLimits(
        max_turns=message.max_turns,
        max_response_tokens=message.max_response_tokens,
        max_total_tokens=message.max_total_tokens,
        max_wall_seconds=message.max_wall_seconds,
        max_repeated_calls=message.max_repeated_calls,
        max_tool_output_tokens=message.max_tool_output_tokens,
    )


def tools_from_proto(message: rollout_pb2.ToolSettings) -> ToolSettings:
    """Tool settings; 0 seconds stands for the default."""
    return ToolSettings(message.enabled, message.wall_seconds or _DEFAULT_TOOL_SECONDS, message.memory_bytes)


def source_from_proto(message: rollout_pb2.BeginWeightUpdateRequest) -> WeightSource:
    """Where the weights of an update lie."""
    if message.WhichOneof("source") == "transfer":
        return WeightSource(None, message.transfer.backend, message.transfer.settings_json)
    return WeightSource(message.file.path or None)


def engine_state_to_proto(state: EngineState) -> rollout_pb2.GetEngineStateResponse.Engine:
    """The wire form of an engine's state."""
    return rollout_pb2.GetEngineStateResponse.Engine(
        engine_id=state.engine_id,
        type=state.type,
        weight_version=state.weight_version,
        checksum=state.checksum,
        free_kv_blocks=state.free_kv_blocks,
        total_kv_blocks=state.total_kv_blocks,
        block_tokens=state.block_tokens,
        running=state.running,
        waiting=state.waiting,
        paused=state.paused,
        workers=state.workers,
        transfer_backend=state.transfer_backend,
        sleeps=state.sleeps,
        held_out=state.held_out,
    )


def engine_state_from_proto(message: rollout_pb2.GetEngineStateResponse.Engine) -> EngineState:
    """An engine's state."""
    return EngineState(
        engine_id=message.engine_id,
        type=message.type,
        weight_version=message.weight_version,
        checksum=message.checksum,
        free_kv_blocks=message.free_kv_blocks,
        total_kv_blocks=message.total_kv_blocks,
        block_tokens=message.block_tokens,
        running=message.running,
        waiting=message.waiting,
        paused=message.paused,
        workers=message.workers,
        transfer_backend=message.transfer_backend,
        sleeps=message.sleeps,
        held_out=message.held_out,
    )
