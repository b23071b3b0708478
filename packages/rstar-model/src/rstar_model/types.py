"""The words for spans, tool results and endings. They are the contracts' words, so rstar-protos defines them."""

from __future__ import annotations

from rstar_protos.vocabulary import EndReason, SpanKind, ToolStatus

__all__ = ["EndReason", "SpanKind", "ToolStatus"]
