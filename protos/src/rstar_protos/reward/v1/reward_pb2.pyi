from rstar_protos.common.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class VerdictStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VERDICT_STATUS_UNSPECIFIED: _ClassVar[VerdictStatus]
    VERDICT_STATUS_CORRECT: _ClassVar[VerdictStatus]
    VERDICT_STATUS_WRONG: _ClassVar[VerdictStatus]
    VERDICT_STATUS_NO_ANSWER: _ClassVar[VerdictStatus]
    VERDICT_STATUS_HEDGED: _ClassVar[VerdictStatus]
    VERDICT_STATUS_TOO_COMPLEX: _ClassVar[VerdictStatus]
    VERDICT_STATUS_TIMEOUT: _ClassVar[VerdictStatus]
    VERDICT_STATUS_BAD_GOLD: _ClassVar[VerdictStatus]
    VERDICT_STATUS_UNSCORABLE: _ClassVar[VerdictStatus]
VERDICT_STATUS_UNSPECIFIED: VerdictStatus
VERDICT_STATUS_CORRECT: VerdictStatus
VERDICT_STATUS_WRONG: VerdictStatus
VERDICT_STATUS_NO_ANSWER: VerdictStatus
VERDICT_STATUS_HEDGED: VerdictStatus
VERDICT_STATUS_TOO_COMPLEX: VerdictStatus
VERDICT_STATUS_TIMEOUT: VerdictStatus
VERDICT_STATUS_BAD_GOLD: VerdictStatus
VERDICT_STATUS_UNSCORABLE: VerdictStatus

class Segment(_message.Message):
    __slots__ = ("kind", "text")
    KIND_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    kind: _common_pb2.SpanKind
    text: str
    def __init__(self, kind: _Optional[_Union[_common_pb2.SpanKind, str]] = ..., text: _Optional[str] = ...) -> None: ...

class ScoreRequest(_message.Message):
    __slots__ = ("request_id", "gold", "segments", "response", "end_reason", "verifier")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    GOLD_FIELD_NUMBER: _ClassVar[int]
    SEGMENTS_FIELD_NUMBER: _ClassVar[int]
    RESPONSE_FIELD_NUMBER: _ClassVar[int]
    END_REASON_FIELD_NUMBER: _ClassVar[int]
    VERIFIER_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    gold: str
    segments: _containers.RepeatedCompositeFieldContainer[Segment]
    response: str
    end_reason: _common_pb2.EndReason
    verifier: str
    def __init__(self, request_id: _Optional[str] = ..., gold: _Optional[str] = ..., segments: _Optional[_Iterable[_Union[Segment, _Mapping]]] = ..., response: _Optional[str] = ..., end_reason: _Optional[_Union[_common_pb2.EndReason, str]] = ..., verifier: _Optional[str] = ...) -> None: ...

class ScoreResponse(_message.Message):
    __slots__ = ("request_id", "status", "reward", "reason", "extracted", "wall_seconds")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    EXTRACTED_FIELD_NUMBER: _ClassVar[int]
    WALL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    status: VerdictStatus
    reward: float
    reason: str
    extracted: str
    wall_seconds: float
    def __init__(self, request_id: _Optional[str] = ..., status: _Optional[_Union[VerdictStatus, str]] = ..., reward: _Optional[float] = ..., reason: _Optional[str] = ..., extracted: _Optional[str] = ..., wall_seconds: _Optional[float] = ...) -> None: ...

class CheckGoldRequest(_message.Message):
    __slots__ = ("golds", "verifier")
    GOLDS_FIELD_NUMBER: _ClassVar[int]
    VERIFIER_FIELD_NUMBER: _ClassVar[int]
    golds: _containers.RepeatedScalarFieldContainer[str]
    verifier: str
    def __init__(self, golds: _Optional[_Iterable[str]] = ..., verifier: _Optional[str] = ...) -> None: ...

class CheckGoldResponse(_message.Message):
    __slots__ = ("bad",)
    class Problem(_message.Message):
        __slots__ = ("index", "reason")
        INDEX_FIELD_NUMBER: _ClassVar[int]
        REASON_FIELD_NUMBER: _ClassVar[int]
        index: int
        reason: str
        def __init__(self, index: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...
    BAD_FIELD_NUMBER: _ClassVar[int]
    bad: _containers.RepeatedCompositeFieldContainer[CheckGoldResponse.Problem]
    def __init__(self, bad: _Optional[_Iterable[_Union[CheckGoldResponse.Problem, _Mapping]]] = ...) -> None: ...
