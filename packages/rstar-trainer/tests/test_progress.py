"""What people see while a run goes on."""

import io

from rich.console import Console

from rstar_trainer.progress import SHOWN_METRICS, Progress


def consoles() -> tuple[Console, io.StringIO, Console, io.StringIO]:
    plain, terminal = io.StringIO(), io.StringIO()
    return (
        Console(file=plain, width=80),
        plain,
        Console(file=terminal, width=100, force_terminal=True, color_system=None),
        terminal,
    )


METRICS = {
    "reward": 0.4375,
    "pass_at_1": 0.5,
    "tool_error_share": 0.125,
    "truncation_share": 0.02,
    "response_tokens": 87.6,
    "groups_kept": 5.0,
    "groups_rejected": 1.0,
    "rollout_tokens_per_second": 181.2,
    "train_tokens_per_second": 302.0,
    "loss": -0.0123,
    "grad_norm": 0.5,
    "something_else": 9.0,
}
FIGURES = (
    "reward 0.44",
    "tool errors 12%",
    "truncated 2%",
    "tokens/response 88",
    "groups kept 5",
    "rejected 1",
    "rollout tok/s 181",
    "train tok/s 302",
)


def drive(progress: Progress) -> None:
    with progress:
        progress.message("fetching [weights]")
        progress.stage("rl-1", total_steps=4, done=1)
        progress.phase("rollout", 3, 48)
        progress.phase("update", 0, 0)
        progress.step(METRICS)
        progress.evaluation({"name": "rl-1", "pass_at_1": 0.61, "ci95": [0.52, 0.69], "problems": 64, "samples": 64})


def test_without_a_terminal_each_step_is_one_line_with_its_figures() -> None:
    console, text, _, _ = consoles()
    drive(Progress(console))
    (line,) = [line for line in text.getvalue().splitlines() if line.startswith("rl-1 2/4:")]
    assert all(figure in line for figure in FIGURES)
    assert "\x1b" not in text.getvalue()


def test_the_evaluation_is_told_with_its_interval() -> None:
    console, text, _, _ = consoles()
    drive(Progress(console))
    assert "rl-1: pass@1 0.610 [0.520, 0.690] (64 problems, 64 samples)" in text.getvalue()


def test_text_with_brackets_is_printed_as_it_is() -> None:
    console, text, _, _ = consoles()
    drive(Progress(console))
    assert "fetching [weights]" in text.getvalue()


def test_on_a_terminal_bars_and_figures_are_drawn() -> None:
    _, _, console, text = consoles()
    with Progress(console) as progress:
        progress.stage("rl-1", total_steps=4)
        progress.step(METRICS)
        progress.phase("rollout", 3, 48)
        assert progress._live is not None
        progress._live.refresh()
        shown = text.getvalue()
    assert "1/4" in shown
    assert "3/48" in shown
    assert "reward 0.44" in shown


def test_missing_metrics_are_left_out() -> None:
    console, text, _, _ = consoles()
    with Progress(console) as progress:
        progress.stage("sft", total_steps=1)
        progress.step({"loss": 1.0})
    assert "sft 1/1: loss 1.0000\n" in text.getvalue()


def test_an_evaluation_without_a_score_is_told() -> None:
    console, text, _, _ = consoles()
    with Progress(console) as progress:
        progress.evaluation({"name": "base", "pass_at_1": None, "ci95": None})
    assert "base: pass@1 -" in text.getvalue()


def test_the_figures_that_tell_how_training_goes_are_shown() -> None:
    telling = {"reward", "pass_at_1", "tool_error_share", "truncation_share", "response_tokens", "groups_kept"}
    assert telling <= set(SHOWN_METRICS)
