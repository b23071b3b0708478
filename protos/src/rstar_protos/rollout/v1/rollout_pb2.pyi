from rstar_protos.common.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Problem(_message.Message):
    __slots__ = ("problem_id", "group_id", "prompt", "samples", "first_sample_index", "partial", "must_finish")
    PROBLEM_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    FIRST_SAMPLE_INDEX_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_FIELD_NUMBER: _ClassVar[int]
    MUST_FINISH_FIELD_NUMBER: _ClassVar[int]
    problem_id: str
    group_id: str
    prompt: str
    samples: int
    first_sample_index: int
    partial: _containers.RepeatedCompositeFieldContainer[Trajectory]
    must_finish: bool
    def __init__(self, problem_id: _Optional[str] = ..., group_id: _Optional[str] = ..., prompt: _Optional[str] = ..., samples: _Optional[int] = ..., first_sample_index: _Optional[int] = ..., partial: _Optional[_Iterable[_Union[Trajectory, _Mapping]]] = ..., must_finish: bool = ...) -> None: ...

class SamplingParams(_message.Message):
    __slots__ = ("temperature", "top_p", "top_k", "seed", "log_probs")
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    LOG_PROBS_FIELD_NUMBER: _ClassVar[int]
    temperature: float
    top_p: float
    top_k: int
    seed: int
    log_probs: bool
    def __init__(self, temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., top_k: _Optional[int] = ..., seed: _Optional[int] = ..., log_probs: bool = ...) -> None: ...

class RolloutLimits(_message.Message):
    __slots__ = ("max_turns", "max_response_tokens", "max_total_tokens", "max_wall_seconds", "max_repeated_calls", "max_tool_output_tokens")
    MAX_TURNS_FIELD_NUMBER: _ClassVar[int]
    MAX_RESPONSE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOTAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_WALL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MAX_REPEATED_CALLS_FIELD_NUMBER: _ClassVar[int]
    MAX_TOOL_OUTPUT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    max_turns: int
    max_response_tokens: int
    max_total_tokens: int
    max_wall_seconds: float
    max_repeated_calls: int
    max_tool_output_tokens: int
    def __init__(self, max_turns: _Optional[int] = ..., max_response_tokens: _Optional[int] = ..., max_total_tokens: _Optional[int] = ..., max_wall_seconds: _Optional[float] = ..., max_repeated_calls: _Optional[int] = ..., max_tool_output_tokens: _Optional[int] = ...) -> None: ...

class ToolSettings(_message.Message):
    __slots__ = ("enabled", "wall_seconds", "memory_bytes")
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    WALL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    enabled: bool
    wall_seconds: float
    memory_bytes: int
    def __init__(self, enabled: bool = ..., wall_seconds: _Optional[float] = ..., memory_bytes: _Optional[int] = ...) -> None: ...

class GenerateGroupsRequest(_message.Message):
    __slots__ = ("request_id", "problems", "sampling", "limits", "tools", "expected_weight_version", "stop_after_groups")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PROBLEMS_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    TOOLS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_WEIGHT_VERSION_FIELD_NUMBER: _ClassVar[int]
    STOP_AFTER_GROUPS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    problems: _containers.RepeatedCompositeFieldContainer[Problem]
    sampling: SamplingParams
    limits: RolloutLimits
    tools: ToolSettings
    expected_weight_version: int
    stop_after_groups: int
    def __init__(self, request_id: _Optional[str] = ..., problems: _Optional[_Iterable[_Union[Problem, _Mapping]]] = ..., sampling: _Optional[_Union[SamplingParams, _Mapping]] = ..., limits: _Optional[_Union[RolloutLimits, _Mapping]] = ..., tools: _Optional[_Union[ToolSettings, _Mapping]] = ..., expected_weight_version: _Optional[int] = ..., stop_after_groups: _Optional[int] = ...) -> None: ...

class GenerateGroupsResponse(_message.Message):
    __slots__ = ("trajectory", "progress")
    TRAJECTORY_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    trajectory: Trajectory
    progress: Progress
    def __init__(self, trajectory: _Optional[_Union[Trajectory, _Mapping]] = ..., progress: _Optional[_Union[Progress, _Mapping]] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("rollouts_total", "rollouts_finished", "tokens_generated")
    ROLLOUTS_TOTAL_FIELD_NUMBER: _ClassVar[int]
    ROLLOUTS_FINISHED_FIELD_NUMBER: _ClassVar[int]
    TOKENS_GENERATED_FIELD_NUMBER: _ClassVar[int]
    rollouts_total: int
    rollouts_finished: int
    tokens_generated: int
    def __init__(self, rollouts_total: _Optional[int] = ..., rollouts_finished: _Optional[int] = ..., tokens_generated: _Optional[int] = ...) -> None: ...

class Span(_message.Message):
    __slots__ = ("kind", "token_ids", "log_probs", "weight_version", "turn")
    KIND_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    LOG_PROBS_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_VERSION_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    kind: _common_pb2.SpanKind
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    log_probs: _containers.RepeatedScalarFieldContainer[float]
    weight_version: int
    turn: int
    def __init__(self, kind: _Optional[_Union[_common_pb2.SpanKind, str]] = ..., token_ids: _Optional[_Iterable[int]] = ..., log_probs: _Optional[_Iterable[float]] = ..., weight_version: _Optional[int] = ..., turn: _Optional[int] = ...) -> None: ...

class ToolCall(_message.Message):
    __slots__ = ("turn", "name", "arguments_json", "status", "response", "wall_seconds", "queue_seconds", "truncated")
    TURN_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_JSON_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    WALL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    turn: int
    name: str
    arguments_json: str
    status: _common_pb2.ToolStatus
    response: str
    wall_seconds: float
    queue_seconds: float
    truncated: bool
    def __init__(self, turn: _Optional[int] = ..., name: _Optional[str] = ..., arguments_json: _Optional[str] = ..., status: _Optional[_Union[_common_pb2.ToolStatus, str]] = ..., response: _Optional[str] = ..., wall_seconds: _Optional[float] = ..., queue_seconds: _Optional[float] = ..., truncated: bool = ...) -> None: ...

class Trajectory(_message.Message):
    __slots__ = ("trajectory_id", "problem_id", "group_id", "sample_index", "spans", "tool_calls", "end_reason", "turns", "answer_tags", "wall_seconds", "seed", "segments", "error", "engine")
    TRAJECTORY_ID_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_INDEX_FIELD_NUMBER: _ClassVar[int]
    SPANS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    END_REASON_FIELD_NUMBER: _ClassVar[int]
    TURNS_FIELD_NUMBER: _ClassVar[int]
    ANSWER_TAGS_FIELD_NUMBER: _ClassVar[int]
    WALL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ENGINE_FIELD_NUMBER: _ClassVar[int]
    trajectory_id: str
    problem_id: str
    group_id: str
    sample_index: int
    spans: _containers.RepeatedCompositeFieldContainer[Span]
    tool_calls: _containers.RepeatedCompositeFieldContainer[ToolCall]
    end_reason: _common_pb2.EndReason
    turns: int
    answer_tags: int
    wall_seconds: float
    seed: int
    segments: _containers.RepeatedCompositeFieldContainer[Segment]
    error: str
    engine: str
    def __init__(self, trajectory_id: _Optional[str] = ..., problem_id: _Optional[str] = ..., group_id: _Optional[str] = ..., sample_index: _Optional[int] = ..., spans: _Optional[_Iterable[_Union[Span, _Mapping]]] = ..., tool_calls: _Optional[_Iterable[_Union[ToolCall, _Mapping]]] = ..., end_reason: _Optional[_Union[_common_pb2.EndReason, str]] = ..., turns: _Optional[int] = ..., answer_tags: _Optional[int] = ..., wall_seconds: _Optional[float] = ..., seed: _Optional[int] = ..., segments: _Optional[_Iterable[_Union[Segment, _Mapping]]] = ..., error: _Optional[str] = ..., engine: _Optional[str] = ...) -> None: ...

class Segment(_message.Message):
    __slots__ = ("kind", "text", "turn")
    KIND_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    TURN_FIELD_NUMBER: _ClassVar[int]
    kind: _common_pb2.SpanKind
    text: str
    turn: int
    def __init__(self, kind: _Optional[_Union[_common_pb2.SpanKind, str]] = ..., text: _Optional[str] = ..., turn: _Optional[int] = ...) -> None: ...

class CancelRolloutsRequest(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    def __init__(self, request_id: _Optional[str] = ...) -> None: ...

class CancelRolloutsResponse(_message.Message):
    __slots__ = ("cancelled",)
    CANCELLED_FIELD_NUMBER: _ClassVar[int]
    cancelled: int
    def __init__(self, cancelled: _Optional[int] = ...) -> None: ...

class PauseRequest(_message.Message):
    __slots__ = ("mode",)
    class Mode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        MODE_UNSPECIFIED: _ClassVar[PauseRequest.Mode]
        MODE_DRAIN: _ClassVar[PauseRequest.Mode]
        MODE_ABORT: _ClassVar[PauseRequest.Mode]
    MODE_UNSPECIFIED: PauseRequest.Mode
    MODE_DRAIN: PauseRequest.Mode
    MODE_ABORT: PauseRequest.Mode
    MODE_FIELD_NUMBER: _ClassVar[int]
    mode: PauseRequest.Mode
    def __init__(self, mode: _Optional[_Union[PauseRequest.Mode, str]] = ...) -> None: ...

class PauseResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResumeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ResumeResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class BeginWeightUpdateRequest(_message.Message):
    __slots__ = ("version", "file", "transfer")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    version: int
    file: FileSource
    transfer: TransferSource
    def __init__(self, version: _Optional[int] = ..., file: _Optional[_Union[FileSource, _Mapping]] = ..., transfer: _Optional[_Union[TransferSource, _Mapping]] = ...) -> None: ...

class FileSource(_message.Message):
    __slots__ = ("path",)
    PATH_FIELD_NUMBER: _ClassVar[int]
    path: str
    def __init__(self, path: _Optional[str] = ...) -> None: ...

class TransferSource(_message.Message):
    __slots__ = ("backend", "settings_json")
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    SETTINGS_JSON_FIELD_NUMBER: _ClassVar[int]
    backend: str
    settings_json: str
    def __init__(self, backend: _Optional[str] = ..., settings_json: _Optional[str] = ...) -> None: ...

class BeginWeightUpdateResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CommitWeightUpdateRequest(_message.Message):
    __slots__ = ("version", "checksum")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    version: int
    checksum: str
    def __init__(self, version: _Optional[int] = ..., checksum: _Optional[str] = ...) -> None: ...

class CommitWeightUpdateResponse(_message.Message):
    __slots__ = ("version", "seconds")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    version: int
    seconds: float
    def __init__(self, version: _Optional[int] = ..., seconds: _Optional[float] = ...) -> None: ...

class SleepRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SleepResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WakeRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WakeResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetEngineStateRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetEngineStateResponse(_message.Message):
    __slots__ = ("engines", "chat_format")
    class Engine(_message.Message):
        __slots__ = ("engine_id", "type", "weight_version", "checksum", "free_kv_blocks", "total_kv_blocks", "block_tokens", "running", "waiting", "paused", "workers", "transfer_backend", "sleeps", "held_out")
        ENGINE_ID_FIELD_NUMBER: _ClassVar[int]
        TYPE_FIELD_NUMBER: _ClassVar[int]
        WEIGHT_VERSION_FIELD_NUMBER: _ClassVar[int]
        CHECKSUM_FIELD_NUMBER: _ClassVar[int]
        FREE_KV_BLOCKS_FIELD_NUMBER: _ClassVar[int]
        TOTAL_KV_BLOCKS_FIELD_NUMBER: _ClassVar[int]
        BLOCK_TOKENS_FIELD_NUMBER: _ClassVar[int]
        RUNNING_FIELD_NUMBER: _ClassVar[int]
        WAITING_FIELD_NUMBER: _ClassVar[int]
        PAUSED_FIELD_NUMBER: _ClassVar[int]
        WORKERS_FIELD_NUMBER: _ClassVar[int]
        TRANSFER_BACKEND_FIELD_NUMBER: _ClassVar[int]
        SLEEPS_FIELD_NUMBER: _ClassVar[int]
        HELD_OUT_FIELD_NUMBER: _ClassVar[int]
        engine_id: str
        type: str
        weight_version: int
        checksum: str
        free_kv_blocks: int
        total_kv_blocks: int
        block_tokens: int
        running: int
        waiting: int
        paused: bool
        workers: int
        transfer_backend: str
        sleeps: bool
        held_out: str
        def __init__(self, engine_id: _Optional[str] = ..., type: _Optional[str] = ..., weight_version: _Optional[int] = ..., checksum: _Optional[str] = ..., free_kv_blocks: _Optional[int] = ..., total_kv_blocks: _Optional[int] = ..., block_tokens: _Optional[int] = ..., running: _Optional[int] = ..., waiting: _Optional[int] = ..., paused: bool = ..., workers: _Optional[int] = ..., transfer_backend: _Optional[str] = ..., sleeps: bool = ..., held_out: _Optional[str] = ...) -> None: ...
    ENGINES_FIELD_NUMBER: _ClassVar[int]
    CHAT_FORMAT_FIELD_NUMBER: _ClassVar[int]
    engines: _containers.RepeatedCompositeFieldContainer[GetEngineStateResponse.Engine]
    chat_format: str
    def __init__(self, engines: _Optional[_Iterable[_Union[GetEngineStateResponse.Engine, _Mapping]]] = ..., chat_format: _Optional[str] = ...) -> None: ...
