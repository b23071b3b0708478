from __future__ import annotations

import pytest
from rich.console import Console

from rstar_model.inspection import render_spans, render_table, summary_line
from rstar_model.ledger import TokenLedger
from rstar_model.tokenizer import Tokenizer
from rstar_model.trajectory import Trajectory
from rstar_model.types import EndReason, SpanKind


@pytest.fixture
def trajectory(tokenizer: Tokenizer) -> Trajectory:
    ledger = TokenLedger()
    ledger.append(SpanKind.PROMPT, tokenizer.encode("<|im_start|>2 + 2?"))
    ids = tokenizer.encode("漢 [bold]4[/bold]\x1b[2J<|im_end|>")
    ledger.append(SpanKind.POLICY, ids, log_probs=[-0.5] * len(ids), weight_version=7)
    ledger.append(SpanKind.TOOL, tokenizer.encode("4"), turn=1)
    return Trajectory("t-1", "p", "g", 0, ledger, (), EndReason.ANSWERED, 1, 0)


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
    (policy,) = [line for line in lines if line.startswith(" policy")]
    assert all(part in policy for part in ("turn 0", "loss", "mean log p -0.500", "weights 7"))
    assert all("loss" not in line for line in lines if line.startswith((" prompt", " tool")))


def test_the_table_has_a_row_for_each_token(trajectory: Trajectory, tokenizer: Tokenizer) -> None:
    assert render_table(trajectory, tokenizer).row_count == len(trajectory.ledger)


def test_the_summary_adds_up(trajectory: Trajectory) -> None:
    ledger = trajectory.ledger
    assert f"{len(ledger)} tokens: {ledger.prompt_length} prompt + {ledger.response_length} response" in summary_line(
        trajectory
    )
