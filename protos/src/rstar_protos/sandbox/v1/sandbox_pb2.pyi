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
    __slots__ = ("request_id", "status", "stdout", "stderr", "value", "traceback", "exit_code", "signal", "stdout_bytes", "stderr_bytes", "stdout_truncated", "stderr_truncated", "timing", "isolation", "files", "session_state", "session_state_reason", "detail")
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
    def __init__(self, request_id: _Optional[str] = ..., status: _Optional[_Union[_common_pb2.ToolStatus, str]] = ..., stdout: _Optional[bytes] = ..., stderr: _Optional[bytes] = ..., value: _Optional[str] = ..., traceback: _Optional[str] = ..., exit_code: _Optional[int] = ..., signal: _Optional[int] = ..., stdout_bytes: _Optional[int] = ..., stderr_bytes: _Optional[int] = ..., stdout_truncated: bool = ..., stderr_truncated: bool = ..., timing: _Optional[_Union[Timing, _Mapping]] = ..., isolation: _Optional[str] = ..., files: _Optional[_Iterable[_Union[File, _Mapping]]] = ..., session_state: _Optional[_Union[SessionState, str]] = ..., session_state_reason: _Optional[str] = ..., detail: _Optional[str] = ...) -> None: ...

class Timing(_message.Message):
    __slots__ = ("queue_seconds", "wall_seconds", "cpu_seconds", "peak_memory_bytes")
    QUEUE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    WALL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    CPU_SECONDS_FIELD_NUMBER: _ClassVar[int]
    PEAK_MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    queue_seconds: float
    wall_seconds: float
    cpu_seconds: float
    peak_memory_bytes: int
    def __init__(self, queue_seconds: _Optional[float] = ..., wall_seconds: _Optional[float] = ..., cpu_seconds: _Optional[float] = ..., peak_memory_bytes: _Optional[int] = ...) -> None: ...

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
    __slots__ = ("slots", "running", "queued", "queue_limit", "isolation", "version")
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    QUEUED_FIELD_NUMBER: _ClassVar[int]
    QUEUE_LIMIT_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    slots: int
    running: int
    queued: int
    queue_limit: int
    isolation: str
    version: str
    def __init__(self, slots: _Optional[int] = ..., running: _Optional[int] = ..., queued: _Optional[int] = ..., queue_limit: _Optional[int] = ..., isolation: _Optional[str] = ..., version: _Optional[str] = ...) -> None: ...
