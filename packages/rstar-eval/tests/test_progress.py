"""Progress on a terminal and elsewhere."""

import io

from rich.console import Console

from rstar_eval import progress
from rstar_eval.progress import EvaluationProgress


def test_terminal_gets_a_bar_with_the_score(make_sample):
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with EvaluationProgress(2, console) as shown:
        shown.add(make_sample("a", calls=["ok", "error"]))
        shown.add(make_sample("b", status="wrong"))
    text = console.file.getvalue()
    assert "pass@1 0.500, tool errors 50.0%" in text
    assert "2/2" in text


def test_elsewhere_plain_lines_are_written_now_and_then(make_sample, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    console = Console(file=io.StringIO(), force_terminal=False, width=120)
    with EvaluationProgress(100, console, done=10) as shown:
        for _ in range(50):
            now[0] += 1
            shown.add(make_sample())
    lines = console.file.getvalue().splitlines()
    assert len(lines) == 5
    assert lines[-1] == "60/100 pass@1 1.000, tool errors -"


def test_lost_samples_do_not_count_as_done(make_sample):
    console = Console(file=io.StringIO(), force_terminal=True, width=120)
    with EvaluationProgress(1, console) as shown:
        shown.add(make_sample(status="infrastructure"))
    assert "0/1" in console.file.getvalue()
