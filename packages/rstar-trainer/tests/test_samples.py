"""Sample trajectories: which are chosen, and that the page shows them unaltered."""

import io
from pathlib import Path
from typing import Any

from rich.console import Console

from rstar_eval.sample import SampleRecord
from rstar_trainer.data import TrainProblem
from rstar_trainer.samples import SampleComparison, compare_samples, print_samples, write_samples

SEGMENTS = (
    {"kind": "prompt", "text": "SYSTEM PROMPT", "turn": 0},
    {"kind": "template", "text": "<reason>", "turn": 0},
    {"kind": "policy", "text": "use [bold] ```python```</reason>", "turn": 0},
    {"kind": "policy", "text": "<tool_call>{}</tool_call>", "turn": 0},
    {"kind": "tool", "text": "42", "turn": 0},
    {"kind": "policy", "text": "<answer>\\boxed{42}</answer>", "turn": 1},
)


def problem(name: str, kind: str = "a") -> TrainProblem:
    return TrainProblem(name, f"text of {name}", "42", kind)


def sample(name: str, correct: bool | None, **changes: Any) -> SampleRecord:
    values: dict[str, Any] = {
        "problem_id": name, "sample_index": 0, "fingerprint": "", "tags": (), "reason": "", "extracted": "42",
        "status": {True: "correct", False: "wrong", None: "unscorable"}[correct],
        "reward": None if correct is None else float(correct), "answer_present": True, "end_reason": "answered",
        "turns": 2, "tool_calls": 1, "executed_tool_calls": 1, "failed_tool_calls": 0, "response_tokens": 90,
        "policy_tokens": 80, "wall_seconds": 1.0, "trajectory_id": name, "engine": "", "policy": "", "settings": {},
        "segments": SEGMENTS,
    }  # fmt: skip
    return SampleRecord(**{**values, **changes})


def chosen(problems: list[TrainProblem], before: list[SampleRecord], after: list[SampleRecord]) -> list[str]:
    return [sample.problem.problem_id for sample in compare_samples(problems, before, after)]


def test_newly_solved_problems_come_first() -> None:
    names = ["a", "b", "c", "d"]
    before = [sample(name, False) for name in names]
    after = [sample(name, name in ("c", "d")) for name in names]
    assert chosen([problem(name) for name in names], before, after) == ["c", "d", "a"]


def test_one_of_each_kind_comes_before_a_second_of_a_kind() -> None:
    problems = [problem("a1"), problem("a2"), problem("a3"), problem("b1", "b"), problem("c1", "c")]
    before = [sample(p.problem_id, False) for p in problems]
    after = [sample(p.problem_id, True) for p in problems]
    assert chosen(problems, before, after) == ["a1", "b1", "c1"]


def test_only_problems_scored_both_times_are_compared() -> None:
    problems = [problem(name) for name in ("a", "b", "c")]
    before = [sample("a", True), sample("b", None), sample("c", True)]
    after = [sample("a", True), sample("b", True)]
    assert chosen(problems, before, after) == ["a"]


def test_nothing_to_compare_gives_nothing() -> None:
    assert chosen([problem("a")], [], []) == []


def comparison() -> SampleComparison:
    return SampleComparison(problem("a"), sample("a", False), sample("a", True))


def page(tmp_path: Path) -> str:
    path = write_samples(tmp_path / "samples.md", [comparison()], before_name="sft", after_name="rl-3")
    return path.read_text()


def test_the_page_shows_outcome_problem_and_answer(tmp_path: Path) -> None:
    text = page(tmp_path)
    assert "After sft: wrong" in text
    assert "After rl-3: correct" in text
    assert "text of a" in text
    assert "Gold answer: `42`" in text


def test_the_page_leaves_the_prompt_out(tmp_path: Path) -> None:
    assert "SYSTEM PROMPT" not in page(tmp_path)


def test_backticks_of_the_policy_do_not_end_its_block(tmp_path: Path) -> None:
    assert "````text\nuse [bold] ```python```</reason><tool_call>{}</tool_call>\n````" in page(tmp_path)


def printed(segments: tuple[dict[str, object], ...]) -> str:
    text = io.StringIO()
    one = sample("a", True, segments=segments)
    console = Console(file=text, width=100)
    print_samples(console, [SampleComparison(problem("a"), one, one)], before_name="sft", after_name="rl-3")
    return text.getvalue()


def test_the_print_shows_markup_as_text() -> None:
    assert "use [bold] ```python```</reason>" in printed(SEGMENTS)


def test_long_rollouts_are_shortened_in_the_middle() -> None:
    shown = printed(({"kind": "policy", "text": "begin " + "x " * 5000 + "end", "turn": 0},))
    assert "[...]" in shown
    assert "begin" in shown
    assert "end" in shown
    assert len(shown) < 4000
