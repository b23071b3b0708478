from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class GetStatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatusResponse(_message.Message):
    __slots__ = ("run_id", "run_dir", "stage", "step", "stage_steps", "global_step", "phase", "stopping")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    RUN_DIR_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    STAGE_STEPS_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_STEP_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    STOPPING_FIELD_NUMBER: _ClassVar[int]
    run_id: str
    run_dir: str
    stage: str
    step: int
    stage_steps: int
    global_step: int
    phase: str
    stopping: bool
    def __init__(self, run_id: _Optional[str] = ..., run_dir: _Optional[str] = ..., stage: _Optional[str] = ..., step: _Optional[int] = ..., stage_steps: _Optional[int] = ..., global_step: _Optional[int] = ..., phase: _Optional[str] = ..., stopping: bool = ...) -> None: ...

class StreamMetricsRequest(_message.Message):
    __slots__ = ("from_global_step", "follow")
    FROM_GLOBAL_STEP_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    from_global_step: int
    follow: bool
    def __init__(self, from_global_step: _Optional[int] = ..., follow: bool = ...) -> None: ...

class MetricsRecord(_message.Message):
    __slots__ = ("global_step", "stage", "kind", "values", "text")
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    GLOBAL_STEP_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    global_step: int
    stage: str
    kind: str
    values: _containers.ScalarMap[str, float]
    text: str
    def __init__(self, global_step: _Optional[int] = ..., stage: _Optional[str] = ..., kind: _Optional[str] = ..., values: _Optional[_Mapping[str, float]] = ..., text: _Optional[str] = ...) -> None: ...

class RequestCheckpointRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RequestCheckpointResponse(_message.Message):
    __slots__ = ("global_step",)
    GLOBAL_STEP_FIELD_NUMBER: _ClassVar[int]
    global_step: int
    def __init__(self, global_step: _Optional[int] = ...) -> None: ...

class RequestStopRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RequestStopResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...
