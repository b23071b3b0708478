"""The table at the end of a run."""

import io
from pathlib import Path

from rich.console import Console

from rstar_trainer.recipe import load_recipe
from rstar_trainer.report import RunReport
from rstar_trainer.summary import print_summary


def printed(report: RunReport) -> str:
    text = io.StringIO()
    print_summary(report, Console(file=text, width=150))
    return text.getvalue()


def row(text: str, name: str) -> list[str]:
    (line,) = [line for line in text.splitlines() if line.startswith("│") and line.split("│")[1].strip() == name]
    return [cell.strip() for cell in line.strip("│").split("│")]


def report(folder: Path) -> RunReport:
    made = RunReport.start(folder, load_recipe())
    made.add_entry({"name": "sft", "rl_steps": 0, "pass_at_1": 0.0625, "ci95": [0.03, 0.12], "problems": 128})
    made.add_entry(
        {
            "name": "rl-3",
            "rl_steps": 12,
            "pass_at_1": 0.75,
            "ci95": [0.67, 0.82],
            "problems": 128,
            "tool_call_share": 0.99,
            "tool_error_share": 0.01,
            "truncation_share": 0.0,
            "mean_response_tokens": 80.4,
            "mean_turns": 2.0,
            "unseen": {"unseen_family": {"pass_at_1": 0.5, "ci95": [0.33, 0.67], "problems": 32}},
        }
    )
    return made


def test_each_entry_is_a_row(tmp_path: Path) -> None:
    text = printed(report(tmp_path))
    assert row(text, "sft")[1:5] == ["0", "0.062", "0.030 - 0.120", "128"]
    assert row(text, "rl-3")[1:] == ["12", "0.750", "0.670 - 0.820", "128", "99%", "1%", "0%", "80", "2.0"]


def test_unseen_kinds_and_the_ablation_have_their_rows(tmp_path: Path) -> None:
    made = report(tmp_path)
    made.set(tool_disabled={"pass_at_1": 0.1, "ci95": [0.06, 0.17], "problems": 128})
    text = printed(made)
    assert row(text, "rl-3, unseen family")[2] == "0.500"
    assert row(text, "rl-3, tool disabled")[2] == "0.100"


def test_missing_figures_are_dashes(tmp_path: Path) -> None:
    made = RunReport.start(tmp_path, load_recipe())
    made.add_entry({"name": "base"})
    assert set(row(printed(made), "base")[1:]) == {"-"}


def test_paths_are_printed_whole(tmp_path: Path) -> None:
    made = report(tmp_path)
    folder = tmp_path / ("x" * 200)
    made.set_checkpoint(folder)
    assert f"rstar-rollout chat --model {folder}" in printed(made)
