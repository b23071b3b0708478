"""A trajectory for human eyes: every token, coloured by the kind of its span."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from rstar_model.ledger import Span
from rstar_model.tokenizer import Tokenizer
from rstar_model.trajectory import Trajectory
from rstar_model.types import SpanKind

__all__ = ["legend", "render_spans", "render_table", "summary_line"]

_STYLES = {
    SpanKind.PROMPT: ("blue", "bright_blue"),
    SpanKind.POLICY: ("bold green", "bold bright_green"),
    SpanKind.TEMPLATE: ("bright_black", "white"),
    SpanKind.TOOL: ("yellow", "bright_yellow"),
}
"""Two shades of a kind, alternating, so that token borders show."""
_CONTROL = "underline"
"""A control token, as against text that spells one."""


def summary_line(trajectory: Trajectory) -> str:
    """One line: which rollout, how it ended and what it consists of."""
    ledger = trajectory.ledger
    versions = sorted({span.weight_version for span in ledger.spans if span.weight_version is not None})
    weights = f", weights {', '.join(map(str, versions))}" if versions else ""
    return (
        f"{trajectory.trajectory_id}: {trajectory.end_reason.value}, {trajectory.turns} turns, "
        f"{len(trajectory.tool_calls)} tool calls ({trajectory.failed_tool_calls} failed), {len(ledger)} tokens: "
        f"{ledger.prompt_length} prompt + {ledger.response_length} response, {ledger.policy_length} with loss{weights}"
        f"{' (several versions)' if len(versions) > 1 else ''}"
    )


def legend() -> Text:
    """Which colour stands for what."""
    line = Text()
    for kind in SpanKind:
        line.append(kind.value, style=_STYLES[kind][0])
        line.append("  ")
    line.append("control token", style=_CONTROL)
    return line


def render_spans(trajectory: Trajectory, tokenizer: Tokenizer) -> Iterator[RenderableType]:
    """Span after span: a heading and its tokens, control tokens and line ends visible."""
    for span in trajectory.ledger.spans:
        yield Text(_heading(span, trajectory), style="reverse")
        line = Text()
        for number, (token, piece) in enumerate(
            zip(span.token_ids, _token_texts(tokenizer, span.token_ids), strict=True)
        ):
            line.append(_visible(piece), style=_style(span.kind, token, number, tokenizer))
        yield line


def render_table(trajectory: Trajectory, tokenizer: Tokenizer) -> Table:
    """One row a token: index, id, text, kind, turn, loss, log-probability, weight version."""
    table = Table("#", "id", "token", "kind", "turn", "loss", "log p", "weights")
    index = 0
    for span in trajectory.ledger.spans:
        texts = _token_texts(tokenizer, span.token_ids)
        log_probs = span.log_probs or (math.nan,) * len(span)
        for token, text, log_prob in zip(span.token_ids, texts, log_probs, strict=True):
            table.add_row(
                str(index),
                str(token),
                Text(_visible(text).replace("\n", ""), style=_style(span.kind, token, 0, tokenizer)),
                span.kind.value,
                str(span.turn),
                "1" if span.kind is SpanKind.POLICY else "0",
                "" if math.isnan(log_prob) else f"{log_prob:.4f}",
                "" if span.weight_version is None else str(span.weight_version),
            )
            index += 1
    return table


def _style(kind: SpanKind, token: int, number: int, tokenizer: Tokenizer) -> str:
    shade = _STYLES[kind][number % 2]
    return f"{shade} {_CONTROL}" if token in tokenizer.control_ids else shade


def _heading(span: Span, trajectory: Trajectory) -> str:
    parts = [span.kind.value, f"turn {span.turn}", f"{len(span)} tokens"]
    if span.kind is SpanKind.TOOL:
        statuses = [call.status.value for call in trajectory.tool_calls if call.turn == span.turn]
        if statuses:
            parts.append(f"calls of the turn: {', '.join(statuses)}")
    if span.kind is SpanKind.POLICY:
        parts.append("loss")
    if span.log_probs:
        parts.append(f"mean log p {sum(span.log_probs) / len(span.log_probs):.3f}")
    if span.weight_version is not None:
        parts.append(f"weights {span.weight_version}")
    return " " + " | ".join(parts) + " "


def _token_texts(tokenizer: Tokenizer, ids: tuple[int, ...]) -> list[str]:
    """Text of each token; a character made of several tokens is shown with the last of them."""
    texts: list[str] = []
    pending: list[int] = []
    for token in ids:
        pending.append(token)
        text = tokenizer.decode(pending)
        if text.endswith("\N{REPLACEMENT CHARACTER}") and len(pending) < 4:
            texts.append("")
        else:
            texts.append(text)
            pending = []
    if pending:
        texts[-1] = tokenizer.decode(pending)
    return texts


def _visible(text: str) -> str:
    shown = text.replace("\n", "\N{RETURN SYMBOL}\n").replace("\t", "\N{RIGHTWARDS ARROW TO BAR}")
    return "".join(c if c.isprintable() or c == "\n" else f"\\x{ord(c):02x}" for c in shown)
