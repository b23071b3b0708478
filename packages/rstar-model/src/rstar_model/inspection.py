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

__all__ = ["render_spans", "render_table", "summary_line"]

_STYLES = {
    SpanKind.PROMPT: ("blue", "bright_blue"),
    SpanKind.POLICY: ("bold green", "bold bright_green"),
    SpanKind.TEMPLATE: ("bright_black", "white"),
    SpanKind.TOOL: ("yellow", "bright_yellow"),
}
"""Two shades of a kind, alternating, so that token borders show."""


def summary_line(trajectory: Trajectory) -> str:
    """One line: which rollout, how it ended and what it consists of."""
    ledger = trajectory.ledger
    return (
        f"{trajectory.trajectory_id}: {trajectory.end_reason.value}, {trajectory.turns} turns, "
        f"{len(trajectory.tool_calls)} tool calls ({trajectory.failed_tool_calls} failed), {len(ledger)} tokens: "
        f"{ledger.prompt_length} prompt + {ledger.response_length} response, {ledger.policy_length} with loss"
    )


def render_spans(trajectory: Trajectory, tokenizer: Tokenizer) -> Iterator[RenderableType]:
    """Span after span: a heading and its tokens, control tokens and line ends visible."""
    for span in trajectory.ledger.spans:
        yield Text(_heading(span), style="reverse")
        line = Text()
        for number, piece in enumerate(_token_texts(tokenizer, span.token_ids)):
            line.append(_visible(piece), style=_STYLES[span.kind][number % 2])
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
                Text(_visible(text).replace("\n", ""), style=_STYLES[span.kind][0]),
                span.kind.value,
                str(span.turn),
                "1" if span.kind is SpanKind.POLICY else "0",
                "" if math.isnan(log_prob) else f"{log_prob:.4f}",
                "" if span.weight_version is None else str(span.weight_version),
            )
            index += 1
    return table


def _heading(span: Span) -> str:
    parts = [span.kind.value, f"turn {span.turn}", f"{len(span)} tokens"]
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
