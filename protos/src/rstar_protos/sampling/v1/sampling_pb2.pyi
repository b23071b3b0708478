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
    __slots__ = ("request_id", "group_id", "rollouts", "keep", "seed", "epsilon", "enabled", "mode", "min_positives", "min_negatives")
    class Mode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        MODE_UNSPECIFIED: _ClassVar[ResampleGroupRequest.Mode]
        MODE_PAPER: _ClassVar[ResampleGroupRequest.Mode]
        MODE_RELEASE: _ClassVar[ResampleGroupRequest.Mode]
    MODE_UNSPECIFIED: ResampleGroupRequest.Mode
    MODE_PAPER: ResampleGroupRequest.Mode
    MODE_RELEASE: ResampleGroupRequest.Mode
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    ROLLOUTS_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    EPSILON_FIELD_NUMBER: _ClassVar[int]
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    MIN_POSITIVES_FIELD_NUMBER: _ClassVar[int]
    MIN_NEGATIVES_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    group_id: str
    rollouts: _containers.RepeatedCompositeFieldContainer[ScoredRollout]
    keep: int
    seed: int
    epsilon: float
    enabled: bool
    mode: ResampleGroupRequest.Mode
    min_positives: int
    min_negatives: int
    def __init__(self, request_id: _Optional[str] = ..., group_id: _Optional[str] = ..., rollouts: _Optional[_Iterable[_Union[ScoredRollout, _Mapping]]] = ..., keep: _Optional[int] = ..., seed: _Optional[int] = ..., epsilon: _Optional[float] = ..., enabled: bool = ..., mode: _Optional[_Union[ResampleGroupRequest.Mode, str]] = ..., min_positives: _Optional[int] = ..., min_negatives: _Optional[int] = ...) -> None: ...

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
    __slots__ = ("group_id", "kept_ids", "decisions", "rejected", "reject_reason", "positives", "negatives", "unscorable")
    class RejectReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        REJECT_REASON_UNSPECIFIED: _ClassVar[ResampleGroupResponse.RejectReason]
        REJECT_REASON_NOTHING_SCORED: _ClassVar[ResampleGroupResponse.RejectReason]
        REJECT_REASON_ALL_CORRECT: _ClassVar[ResampleGroupResponse.RejectReason]
        REJECT_REASON_ALL_WRONG: _ClassVar[ResampleGroupResponse.RejectReason]
        REJECT_REASON_EQUAL_REWARDS: _ClassVar[ResampleGroupResponse.RejectReason]
    REJECT_REASON_UNSPECIFIED: ResampleGroupResponse.RejectReason
    REJECT_REASON_NOTHING_SCORED: ResampleGroupResponse.RejectReason
    REJECT_REASON_ALL_CORRECT: ResampleGroupResponse.RejectReason
    REJECT_REASON_ALL_WRONG: ResampleGroupResponse.RejectReason
    REJECT_REASON_EQUAL_REWARDS: ResampleGroupResponse.RejectReason
    GROUP_ID_FIELD_NUMBER: _ClassVar[int]
    KEPT_IDS_FIELD_NUMBER: _ClassVar[int]
    DECISIONS_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    REJECT_REASON_FIELD_NUMBER: _ClassVar[int]
    POSITIVES_FIELD_NUMBER: _ClassVar[int]
    NEGATIVES_FIELD_NUMBER: _ClassVar[int]
    UNSCORABLE_FIELD_NUMBER: _ClassVar[int]
    group_id: str
    kept_ids: _containers.RepeatedScalarFieldContainer[str]
    decisions: _containers.RepeatedCompositeFieldContainer[Decision]
    rejected: bool
    reject_reason: ResampleGroupResponse.RejectReason
    positives: int
    negatives: int
    unscorable: int
    def __init__(self, group_id: _Optional[str] = ..., kept_ids: _Optional[_Iterable[str]] = ..., decisions: _Optional[_Iterable[_Union[Decision, _Mapping]]] = ..., rejected: bool = ..., reject_reason: _Optional[_Union[ResampleGroupResponse.RejectReason, str]] = ..., positives: _Optional[int] = ..., negatives: _Optional[int] = ..., unscorable: _Optional[int] = ...) -> None: ...

class SelectGroupsRequest(_message.Message):
    __slots__ = ("request_id", "groups", "wanted", "round", "max_rounds")
    class Group(_message.Message):
        __slots__ = ("group_id", "rejected")
        GROUP_ID_FIELD_NUMBER: _ClassVar[int]
        REJECTED_FIELD_NUMBER: _ClassVar[int]
        group_id: str
        rejected: bool
        def __init__(self, group_id: _Optional[str] = ..., rejected: bool = ...) -> None: ...
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    WANTED_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    MAX_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    groups: _containers.RepeatedCompositeFieldContainer[SelectGroupsRequest.Group]
    wanted: int
    round: int
    max_rounds: int
    def __init__(self, request_id: _Optional[str] = ..., groups: _Optional[_Iterable[_Union[SelectGroupsRequest.Group, _Mapping]]] = ..., wanted: _Optional[int] = ..., round: _Optional[int] = ..., max_rounds: _Optional[int] = ...) -> None: ...

class SelectGroupsResponse(_message.Message):
    __slots__ = ("outcome", "accepted_ids", "rejected_ids", "refill")
    class Outcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        OUTCOME_UNSPECIFIED: _ClassVar[SelectGroupsResponse.Outcome]
        OUTCOME_COMPLETE: _ClassVar[SelectGroupsResponse.Outcome]
        OUTCOME_REFILL: _ClassVar[SelectGroupsResponse.Outcome]
        OUTCOME_SHORT: _ClassVar[SelectGroupsResponse.Outcome]
        OUTCOME_SKIP: _ClassVar[SelectGroupsResponse.Outcome]
    OUTCOME_UNSPECIFIED: SelectGroupsResponse.Outcome
    OUTCOME_COMPLETE: SelectGroupsResponse.Outcome
    OUTCOME_REFILL: SelectGroupsResponse.Outcome
    OUTCOME_SHORT: SelectGroupsResponse.Outcome
    OUTCOME_SKIP: SelectGroupsResponse.Outcome
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_IDS_FIELD_NUMBER: _ClassVar[int]
    REJECTED_IDS_FIELD_NUMBER: _ClassVar[int]
    REFILL_FIELD_NUMBER: _ClassVar[int]
    outcome: SelectGroupsResponse.Outcome
    accepted_ids: _containers.RepeatedScalarFieldContainer[str]
    rejected_ids: _containers.RepeatedScalarFieldContainer[str]
    refill: int
    def __init__(self, outcome: _Optional[_Union[SelectGroupsResponse.Outcome, str]] = ..., accepted_ids: _Optional[_Iterable[str]] = ..., rejected_ids: _Optional[_Iterable[str]] = ..., refill: _Optional[int] = ...) -> None: ...
