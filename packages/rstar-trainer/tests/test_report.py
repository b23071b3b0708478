"""`report.json`: entries in order, written whole each time, continued by a resumed run."""

import json
from pathlib import Path

from rstar_eval.report import Report
from rstar_eval.settings import EvalSettings
from rstar_trainer.recipe import load_recipe
from rstar_trainer.report import REPORT_FILE, RunReport, stage_entry


def stored(folder: Path) -> dict[str, object]:
    values: dict[str, object] = json.loads((folder / REPORT_FILE).read_text())
    return values


def started(folder: Path) -> RunReport:
    return RunReport.start(folder, load_recipe("quickstart", ["seed=2"]))


def test_a_report_names_recipe_seed_and_folder(tmp_path: Path) -> None:
    started(tmp_path).write()
    assert stored(tmp_path) == {"stages": [], "recipe": "quickstart", "seed": 2, "run_dir": str(tmp_path)}


def test_entries_are_written_at_once_and_in_order(tmp_path: Path) -> None:
    report = started(tmp_path)
    for name in ("base", "sft"):
        report.add_entry({"name": name})
        assert stored(tmp_path)["stages"][-1] == {"name": name}  # type: ignore[index]
    assert [entry["name"] for entry in report.stages] == ["base", "sft"]


def test_an_entry_made_again_replaces_the_earlier_one_in_place(tmp_path: Path) -> None:
    report = started(tmp_path)
    for entry in ({"name": "base", "x": 1}, {"name": "sft"}, {"name": "base", "x": 2}):
        report.add_entry(entry)
    assert report.stages == ({"name": "base", "x": 2}, {"name": "sft"})


def test_a_read_report_goes_on(tmp_path: Path) -> None:
    started(tmp_path).add_entry({"name": "base"})
    report = RunReport.read(tmp_path)
    report.add_entry({"name": "sft"})
    assert [entry["name"] for entry in RunReport.read(tmp_path).stages] == ["base", "sft"]


def test_entries_that_will_be_made_again_can_be_dropped(tmp_path: Path) -> None:
    report = started(tmp_path)
    for name in ("base", "sft", "rl-1"):
        report.add_entry({"name": name})
    report.keep_entries(["base", "sft"])
    assert report.entry("rl-1") is None
    assert [entry["name"] for entry in RunReport.read(tmp_path).stages] == ["base", "sft"]


def test_the_chat_command_quotes_the_folder(tmp_path: Path) -> None:
    report = started(tmp_path / "my run")
    report.set_checkpoint(tmp_path / "my run" / "policy")
    assert str(report.values["chat_command"]).endswith(f"'{tmp_path}/my run/policy'")


def test_a_stage_entry_holds_what_the_evaluation_found() -> None:
    settings = EvalSettings(samples=1, temperature=0.7, max_turns=3, max_response_tokens=64, seed=1)
    entry = stage_entry("rl-1", Report.of([], settings), steps=4, rl_steps=4)
    assert (entry["name"], entry["steps"], entry["temperature"]) == ("rl-1", 4, 0.7)
    assert {"pass_at_1", "ci95", "problems", "samples"} <= set(entry)
    assert json.loads(json.dumps(entry)) == entry


def test_unseen_kinds_are_reported_apart() -> None:
    settings = EvalSettings(samples=1, temperature=0.7, max_turns=3, max_response_tokens=64, seed=1)
    empty = Report.of([], settings)
    entry = stage_entry("sft", empty, steps=1, rl_steps=0, unseen={"unseen_family": empty})
    assert set(entry["unseen"]) == {"unseen_family"}
