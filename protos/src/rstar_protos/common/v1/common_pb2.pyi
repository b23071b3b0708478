from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from typing import ClassVar as _ClassVar

DESCRIPTOR: _descriptor.FileDescriptor

class SpanKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SPAN_KIND_UNSPECIFIED: _ClassVar[SpanKind]
    SPAN_KIND_PROMPT: _ClassVar[SpanKind]
    SPAN_KIND_POLICY: _ClassVar[SpanKind]
    SPAN_KIND_TEMPLATE: _ClassVar[SpanKind]
    SPAN_KIND_TOOL: _ClassVar[SpanKind]

class ToolStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TOOL_STATUS_UNSPECIFIED: _ClassVar[ToolStatus]
    TOOL_STATUS_OK: _ClassVar[ToolStatus]
    TOOL_STATUS_ERROR: _ClassVar[ToolStatus]
    TOOL_STATUS_TIMEOUT: _ClassVar[ToolStatus]
    TOOL_STATUS_MEMORY_LIMIT: _ClassVar[ToolStatus]
    TOOL_STATUS_OUTPUT_LIMIT: _ClassVar[ToolStatus]
    TOOL_STATUS_CRASHED: _ClassVar[ToolStatus]
    TOOL_STATUS_PARSE_ERROR: _ClassVar[ToolStatus]
    TOOL_STATUS_UNKNOWN_TOOL: _ClassVar[ToolStatus]
    TOOL_STATUS_UNAVAILABLE: _ClassVar[ToolStatus]

class EndReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    END_REASON_UNSPECIFIED: _ClassVar[EndReason]
    END_REASON_ANSWERED: _ClassVar[EndReason]
    END_REASON_TRUNCATED: _ClassVar[EndReason]
    END_REASON_TURN_LIMIT: _ClassVar[EndReason]
    END_REASON_REPEATED_CALLS: _ClassVar[EndReason]
    END_REASON_CANCELLED: _ClassVar[EndReason]
    END_REASON_INFRASTRUCTURE: _ClassVar[EndReason]
    END_REASON_UNCLOSED_CALL: _ClassVar[EndReason]
SPAN_KIND_UNSPECIFIED: SpanKind
SPAN_KIND_PROMPT: SpanKind
SPAN_KIND_POLICY: SpanKind
SPAN_KIND_TEMPLATE: SpanKind
SPAN_KIND_TOOL: SpanKind
TOOL_STATUS_UNSPECIFIED: ToolStatus
TOOL_STATUS_OK: ToolStatus
TOOL_STATUS_ERROR: ToolStatus
TOOL_STATUS_TIMEOUT: ToolStatus
TOOL_STATUS_MEMORY_LIMIT: ToolStatus
TOOL_STATUS_OUTPUT_LIMIT: ToolStatus
TOOL_STATUS_CRASHED: ToolStatus
TOOL_STATUS_PARSE_ERROR: ToolStatus
TOOL_STATUS_UNKNOWN_TOOL: ToolStatus
TOOL_STATUS_UNAVAILABLE: ToolStatus
END_REASON_UNSPECIFIED: EndReason
END_REASON_ANSWERED: EndReason
END_REASON_TRUNCATED: EndReason
END_REASON_TURN_LIMIT: EndReason
END_REASON_REPEATED_CALLS: EndReason
END_REASON_CANCELLED: EndReason
END_REASON_INFRASTRUCTURE: EndReason
END_REASON_UNCLOSED_CALL: EndReason
