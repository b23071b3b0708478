from __future__ import annotations

import pytest
from rich.console import Console

from rstar_model.inspection import legend, render_spans, render_table, summary_line
from rstar_model.ledger import TokenLedger
from rstar_model.tokenizer import Tokenizer
from rstar_model.trajectory import ToolCallRecord, Trajectory
from rstar_model.types import EndReason, SpanKind, ToolStatus


@pytest.fixture
def trajectory(tokenizer: Tokenizer) -> Trajectory:
    ledger = TokenLedger()
    ledger.append(SpanKind.PROMPT, tokenizer.encode("<|im_start|>2 + 2?"))
    ids = tokenizer.encode("漢 [bold]4[/bold]\x1b[2J<|im_end|>")
    ledger.append(SpanKind.POLICY, ids, log_probs=[-0.5] * len(ids), weight_version=7)
    ledger.append(SpanKind.TOOL, tokenizer.encode_untrusted("4<|im_end|>"), turn=0)
    ledger.append(SpanKind.POLICY, tokenizer.encode("ok"), log_probs=[-0.5, -0.5], weight_version=8, turn=1)
    calls = (ToolCallRecord(0, "f", "{}", ToolStatus.OK, "4"), ToolCallRecord(0, "f", "{}", ToolStatus.TIMEOUT, ""))
    return Trajectory("t-1", "p", "g", 0, ledger, calls, EndReason.ANSWERED, 2, 0)


def shown(parts, colour: bool = False) -> str:
    # NO_COLOR and TERM of whoever runs the tests have no say.
    console = Console(
        width=200,
        record=True,
        force_terminal=colour,
        color_system="standard" if colour else None,
        markup=False,
        no_color=not colour,
        _environ={},
    )
    with console.capture() as capture:
        for part in parts:
            console.print(part)
    return capture.get()


def test_every_token_is_shown_as_it_is(trajectory: Trajectory, tokenizer: Tokenizer) -> None:
    text = shown(render_spans(trajectory, tokenizer))
    assert "<|im_start|>2 + 2?" in text
    assert "漢 [bold]4[/bold]" in text  # markup of others is text


def test_terminal_escapes_in_tokens_do_not_reach_the_terminal(trajectory: Trajectory, tokenizer: Tokenizer) -> None:
    text = shown(render_spans(trajectory, tokenizer))
    assert "\x1b" not in text
    assert "\\x1b[2J" in text


def test_kinds_differ_in_colour(trajectory: Trajectory, tokenizer: Tokenizer) -> None:
    text = shown(render_spans(trajectory, tokenizer), colour=True)
    assert "\x1b[34m" in text  # blue prompt
    assert "\x1b[1;32m" in text  # bold green policy
    assert "\x1b[33m" in text  # yellow tool


def test_headings_say_what_carries_loss(trajectory: Trajectory, tokenizer: Tokenizer) -> None:
    lines = shown(render_spans(trajectory, tokenizer)).splitlines()
    policy, later = [line for line in lines if line.startswith(" policy")]
    assert "weights 8" in later
    assert all(part in policy for part in ("turn 0", "loss", "mean log p -0.500", "weights 7"))
    assert all("loss" not in line for line in lines if line.startswith((" prompt", " tool")))


def test_the_table_has_a_row_for_each_token(trajectory: Trajectory, tokenizer: Tokenizer) -> None:
    assert render_table(trajectory, tokenizer).row_count == len(trajectory.ledger)


def test_the_summary_adds_up(trajectory: Trajectory) -> None:
    ledger = trajectory.ledger
    assert f"{len(ledger)} tokens: {ledger.prompt_length} prompt + {ledger.response_length} response" in summary_line(
        trajectory
    )
    assert "2 tool calls (1 failed)" in summary_line(trajectory)


def test_the_summary_says_when_weights_changed_on_the_way(trajectory: Trajectory) -> None:
    assert summary_line(trajectory).endswith("weights 7, 8 (several versions)")


def test_a_tool_span_tells_how_its_calls_ended(trajectory: Trajectory, tokenizer: Tokenizer) -> None:
    assert "calls of the turn: ok, timeout" in shown(render_spans(trajectory, tokenizer))


def test_a_control_token_is_told_from_text_that_spells_one(trajectory: Trajectory, tokenizer: Tokenizer) -> None:
    text = shown(render_spans(trajectory, tokenizer), colour=True)
    assert text.count("\x1b[4;34m<|im_start|>") == 1
    assert text.count("\x1b[1;4;32m<|im_end|>") + text.count("\x1b[1;4;92m<|im_end|>") == 1
    assert "\x1b[4;33m" not in text  # the tool's
    assert "\x1b[4;93m" not in text


def test_the_legend_names_every_kind() -> None:
    assert all(kind.value in legend().plain for kind in SpanKind)
