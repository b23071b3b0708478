from rstar_protos.common.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SessionState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SESSION_STATE_UNSPECIFIED: _ClassVar[SessionState]
    SESSION_STATE_KEPT: _ClassVar[SessionState]
    SESSION_STATE_LOST: _ClassVar[SessionState]
SESSION_STATE_UNSPECIFIED: SessionState
SESSION_STATE_KEPT: SessionState
SESSION_STATE_LOST: SessionState

class Limits(_message.Message):
    __slots__ = ("wall_seconds", "cpu_seconds", "memory_bytes", "max_stdout_bytes", "max_stderr_bytes")
    WALL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    CPU_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_STDOUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_STDERR_BYTES_FIELD_NUMBER: _ClassVar[int]
    wall_seconds: float
    cpu_seconds: float
    memory_bytes: int
    max_stdout_bytes: int
    max_stderr_bytes: int
    def __init__(self, wall_seconds: _Optional[float] = ..., cpu_seconds: _Optional[float] = ..., memory_bytes: _Optional[int] = ..., max_stdout_bytes: _Optional[int] = ..., max_stderr_bytes: _Optional[int] = ...) -> None: ...

class File(_message.Message):
    __slots__ = ("path", "content")
    PATH_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    path: str
    content: bytes
    def __init__(self, path: _Optional[str] = ..., content: _Optional[bytes] = ...) -> None: ...

class ExecuteRequest(_message.Message):
    __slots__ = ("request_id", "code", "stdin", "limits", "files", "collect_paths")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    STDIN_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    COLLECT_PATHS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    code: str
    stdin: bytes
    limits: Limits
    files: _containers.RepeatedCompositeFieldContainer[File]
    collect_paths: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, request_id: _Optional[str] = ..., code: _Optional[str] = ..., stdin: _Optional[bytes] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., files: _Optional[_Iterable[_Union[File, _Mapping]]] = ..., collect_paths: _Optional[_Iterable[str]] = ...) -> None: ...

class ExecuteResponse(_message.Message):
    __slots__ = ("request_id", "status", "stdout", "stderr", "value", "traceback", "exit_code", "signal", "stdout_bytes", "stderr_bytes", "stdout_truncated", "stderr_truncated", "timing", "isolation", "files", "session_state", "session_state_reason", "detail", "tier")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    STDOUT_FIELD_NUMBER: _ClassVar[int]
    STDERR_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    TRACEBACK_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    STDOUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    STDERR_BYTES_FIELD_NUMBER: _ClassVar[int]
    STDOUT_TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    STDERR_TRUNCATED_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    SESSION_STATE_FIELD_NUMBER: _ClassVar[int]
    SESSION_STATE_REASON_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    TIER_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    status: _common_pb2.ToolStatus
    stdout: bytes
    stderr: bytes
    value: str
    traceback: str
    exit_code: int
    signal: int
    stdout_bytes: int
    stderr_bytes: int
    stdout_truncated: bool
    stderr_truncated: bool
    timing: Timing
    isolation: str
    files: _containers.RepeatedCompositeFieldContainer[File]
    session_state: SessionState
    session_state_reason: str
    detail: str
    tier: str
    def __init__(self, request_id: _Optional[str] = ..., status: _Optional[_Union[_common_pb2.ToolStatus, str]] = ..., stdout: _Optional[bytes] = ..., stderr: _Optional[bytes] = ..., value: _Optional[str] = ..., traceback: _Optional[str] = ..., exit_code: _Optional[int] = ..., signal: _Optional[int] = ..., stdout_bytes: _Optional[int] = ..., stderr_bytes: _Optional[int] = ..., stdout_truncated: bool = ..., stderr_truncated: bool = ..., timing: _Optional[_Union[Timing, _Mapping]] = ..., isolation: _Optional[str] = ..., files: _Optional[_Iterable[_Union[File, _Mapping]]] = ..., session_state: _Optional[_Union[SessionState, str]] = ..., session_state_reason: _Optional[str] = ..., detail: _Optional[str] = ..., tier: _Optional[str] = ...) -> None: ...

class Timing(_message.Message):
    __slots__ = ("queue_seconds", "wall_seconds", "cpu_seconds", "peak_memory_bytes", "fork", "exec", "drain", "reap", "forked_ahead", "leaked_processes")
    QUEUE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WALL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    CPU_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PEAK_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    FORK_FIELD_NUMBER: _ClassVar[int]
    EXEC_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    REAP_FIELD_NUMBER: _ClassVar[int]
    FORKED_AHEAD_FIELD_NUMBER: _ClassVar[int]
    LEAKED_PROCESSES_FIELD_NUMBER: _ClassVar[int]
    queue_seconds: float
    wall_seconds: float
    cpu_seconds: float
    peak_memory_bytes: int
    fork: Phase
    exec: Phase
    drain: Phase
    reap: Phase
    forked_ahead: bool
    leaked_processes: int
    def __init__(self, queue_seconds: _Optional[float] = ..., wall_seconds: _Optional[float] = ..., cpu_seconds: _Optional[float] = ..., peak_memory_bytes: _Optional[int] = ..., fork: _Optional[_Union[Phase, _Mapping]] = ..., exec: _Optional[_Union[Phase, _Mapping]] = ..., drain: _Optional[_Union[Phase, _Mapping]] = ..., reap: _Optional[_Union[Phase, _Mapping]] = ..., forked_ahead: bool = ..., leaked_processes: _Optional[int] = ...) -> None: ...

class Phase(_message.Message):
    __slots__ = ("wall_seconds", "cpu_seconds")
    WALL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    CPU_SECONDS_FIELD_NUMBER: _ClassVar[int]
    wall_seconds: float
    cpu_seconds: float
    def __init__(self, wall_seconds: _Optional[float] = ..., cpu_seconds: _Optional[float] = ...) -> None: ...

class OpenSessionRequest(_message.Message):
    __slots__ = ("request_id", "limits", "ttl_seconds")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    TTL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    limits: Limits
    ttl_seconds: float
    def __init__(self, request_id: _Optional[str] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., ttl_seconds: _Optional[float] = ...) -> None: ...

class OpenSessionResponse(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    def __init__(self, session_id: _Optional[str] = ...) -> None: ...

class ExecuteCellRequest(_message.Message):
    __slots__ = ("session_id", "cell")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    CELL_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    cell: ExecuteRequest
    def __init__(self, session_id: _Optional[str] = ..., cell: _Optional[_Union[ExecuteRequest, _Mapping]] = ...) -> None: ...

class CloseSessionRequest(_message.Message):
    __slots__ = ("session_id",)
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    session_id: str
    def __init__(self, session_id: _Optional[str] = ...) -> None: ...

class CloseSessionResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetCapacityRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetCapacityResponse(_message.Message):
    __slots__ = ("slots", "running", "queued", "queue_limit", "isolation", "version", "workers")
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    QUEUE_LIMIT_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WORKERS_FIELD_NUMBER: _ClassVar[int]
    slots: int
    running: int
    queued: int
    queue_limit: int
    isolation: str
    version: str
    workers: int
    def __init__(self, slots: _Optional[int] = ..., running: _Optional[int] = ..., queued: _Optional[int] = ..., queue_limit: _Optional[int] = ..., isolation: _Optional[str] = ..., version: _Optional[str] = ..., workers: _Optional[int] = ...) -> None: ...

class AttachRequest(_message.Message):
    __slots__ = ("hello", "answers", "credits", "draining")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    CREDITS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    hello: WorkerHello
    answers: _containers.RepeatedCompositeFieldContainer[Answer]
    credits: int
    draining: bool
    def __init__(self, hello: _Optional[_Union[WorkerHello, _Mapping]] = ..., answers: _Optional[_Iterable[_Union[Answer, _Mapping]]] = ..., credits: _Optional[int] = ..., draining: bool = ...) -> None: ...

class WorkerHello(_message.Message):
    __slots__ = ("name", "slots", "max_sessions", "isolation", "version")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    MAX_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    slots: int
    max_sessions: int
    isolation: str
    version: str
    def __init__(self, name: _Optional[str] = ..., slots: _Optional[int] = ..., max_sessions: _Optional[int] = ..., isolation: _Optional[str] = ..., version: _Optional[str] = ...) -> None: ...

class AttachResponse(_message.Message):
    __slots__ = ("assignments", "cancelled_leases", "silence_seconds")
    ASSIGNMENTS_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_LEASES_FIELD_NUMBER: _ClassVar[int]
    SILENCE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    assignments: _containers.RepeatedCompositeFieldContainer[Assignment]
    cancelled_leases: _containers.RepeatedScalarFieldContainer[int]
    silence_seconds: float
    def __init__(self, assignments: _Optional[_Iterable[_Union[Assignment, _Mapping]]] = ..., cancelled_leases: _Optional[_Iterable[int]] = ..., silence_seconds: _Optional[float] = ...) -> None: ...

class Assignment(_message.Message):
    __slots__ = ("lease", "epoch", "execute", "open_session", "execute_cell", "close_session")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    EXECUTE_FIELD_NUMBER: _ClassVar[int]
    OPEN_SESSION_FIELD_NUMBER: _ClassVar[int]
    EXECUTE_CELL_FIELD_NUMBER: _ClassVar[int]
    CLOSE_SESSION_FIELD_NUMBER: _ClassVar[int]
    lease: int
    epoch: int
    execute: ExecuteRequest
    open_session: OpenSessionRequest
    execute_cell: ExecuteCellRequest
    close_session: CloseSessionRequest
    def __init__(self, lease: _Optional[int] = ..., epoch: _Optional[int] = ..., execute: _Optional[_Union[ExecuteRequest, _Mapping]] = ..., open_session: _Optional[_Union[OpenSessionRequest, _Mapping]] = ..., execute_cell: _Optional[_Union[ExecuteCellRequest, _Mapping]] = ..., close_session: _Optional[_Union[CloseSessionRequest, _Mapping]] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("lease", "response", "session", "closed", "refusal")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    lease: int
    response: ExecuteResponse
    session: OpenSessionResponse
    closed: CloseSessionResponse
    refusal: Refusal
    def __init__(self, lease: _Optional[int] = ..., response: _Optional[_Union[ExecuteResponse, _Mapping]] = ..., session: _Optional[_Union[OpenSessionResponse, _Mapping]] = ..., closed: _Optional[_Union[CloseSessionResponse, _Mapping]] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("code", "details", "retry_after_milliseconds")
    CODE_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MILLISECONDS_FIELD_NUMBER: _ClassVar[int]
    code: int
    details: str
    retry_after_milliseconds: int
    def __init__(self, code: _Optional[int] = ..., details: _Optional[str] = ..., retry_after_milliseconds: _Optional[int] = ...) -> None: ...
