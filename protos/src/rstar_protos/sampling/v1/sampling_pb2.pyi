from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ScoredRollout(_message.Message):
    __slots__ = ("trajectory_id", "reward", "tool_calls", "failed_tool_calls", "answer_tags", "turns")
    TRAJECTORY_ID_FIELD_NUMBER: _ClassVar[int]
    REWARD_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    FAILED_TOOL_CALLS_FIELD_NUMBER: _ClassVar[int]
    ANSWER_TAGS_FIELD_NUMBER: _ClassVar[int]
    TURNS_FIELD_NUMBER: _ClassVar[int]
    trajectory_id: str
    reward: float
    tool_calls: int
    failed_tool_calls: int
    answer_tags: int
    turns: int
    def __init__(self, trajectory_id: _Optional[str] = ..., reward: _Optional[float] = ..., tool_calls: _Optional[int] = ..., failed_tool_calls: _Optional[int] = ..., answer_tags: _Optional[int] = ..., turns: _Optional[int] = ...) -> None: ...

class ResampleGroupRequest(_message.Message):
    __slots__ = ("request_id", "group_id", "rollouts", "keep", "seed", "epsilon", "enabled")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    ROLLOUTS_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    EPSILON_FIELD_NUMBER: _ClassVar[int]
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    group_id: str
    rollouts: _containers.RepeatedCompositeFieldContainer[ScoredRollout]
    keep: int
    seed: int
    epsilon: float
    enabled: bool
    def __init__(self, request_id: _Optional[str] = ..., group_id: _Optional[str] = ..., rollouts: _Optional[_Iterable[_Union[ScoredRollout, _Mapping]]] = ..., keep: _Optional[int] = ..., seed: _Optional[int] = ..., epsilon: _Optional[float] = ..., enabled: bool = ...) -> None: ...

class Decision(_message.Message):
    __slots__ = ("trajectory_id", "kept", "reason", "p_err", "p_format")
    class Reason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        REASON_UNSPECIFIED: _ClassVar[Decision.Reason]
        REASON_KEPT_POSITIVE: _ClassVar[Decision.Reason]
        REASON_KEPT_NEGATIVE: _ClassVar[Decision.Reason]
        REASON_KEPT_ALL: _ClassVar[Decision.Reason]
        REASON_DROPPED_POSITIVE: _ClassVar[Decision.Reason]
        REASON_DROPPED_NEGATIVE: _ClassVar[Decision.Reason]
        REASON_UNSCORABLE: _ClassVar[Decision.Reason]
        REASON_KEPT_RANDOM: _ClassVar[Decision.Reason]
        REASON_DROPPED_RANDOM: _ClassVar[Decision.Reason]
    REASON_UNSPECIFIED: Decision.Reason
    REASON_KEPT_POSITIVE: Decision.Reason
    REASON_KEPT_NEGATIVE: Decision.Reason
    REASON_KEPT_ALL: Decision.Reason
    REASON_DROPPED_POSITIVE: Decision.Reason
    REASON_DROPPED_NEGATIVE: Decision.Reason
    REASON_UNSCORABLE: Decision.Reason
    REASON_KEPT_RANDOM: Decision.Reason
    REASON_DROPPED_RANDOM: Decision.Reason
    TRAJECTORY_ID_FIELD_NUMBER: _ClassVar[int]
    KEPT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    P_ERR_FIELD_NUMBER: _ClassVar[int]
    P_FORMAT_FIELD_NUMBER: _ClassVar[int]
    trajectory_id: str
    kept: bool
    reason: Decision.Reason
    p_err: float
    p_format: float
    def __init__(self, trajectory_id: _Optional[str] = ..., kept: bool = ..., reason: _Optional[_Union[Decision.Reason, str]] = ..., p_err: _Optional[float] = ..., p_format: _Optional[float] = ...) -> None: ...

class ResampleGroupResponse(_message.Message):
    __slots__ = ("group_id", "kept_ids", "decisions", "rejected")
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    KEPT_IDS_FIELD_NUMBER: _ClassVar[int]
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    kept_ids: _containers.RepeatedScalarFieldContainer[str]
    decisions: _containers.RepeatedCompositeFieldContainer[Decision]
    rejected: bool
    def __init__(self, group_id: _Optional[str] = ..., kept_ids: _Optional[_Iterable[str]] = ..., decisions: _Optional[_Iterable[_Union[Decision, _Mapping]]] = ..., rejected: bool = ...) -> None: ...
