"""Everything a finished run leaves for people is written and named in the report."""

import io
import json
from pathlib import Path

from rich.console import Console

from rstar_trainer.metrics_log import MetricsLog
from rstar_trainer.recipe import load_recipe
from rstar_trainer.report import REPORT_FILE, RunReport
from rstar_trainer.results import finish_report


def test_the_report_names_files_that_exist_and_the_chat_command(tmp_path: Path) -> None:
    report = RunReport.start(tmp_path, load_recipe())
    report.add_entry({"name": "rl-3", "pass_at_1": 0.75, "ci95": [0.67, 0.82]})
    text = io.StringIO()
    with MetricsLog(tmp_path) as log:
        log.log("rl", global_step=1, stage="rl-1", values={"reward": 0.5})
        finish_report(
            report,
            log=log,
            problems=[],
            before=[],
            after=[],
            before_name="sft",
            after_name="rl-3",
            checkpoint=tmp_path / "policy",
            console=Console(file=text, width=150),
        )
    stored = json.loads((tmp_path / REPORT_FILE).read_text())
    assert all(Path(stored[name]).exists() for name in ("curves", "samples", "metrics", "tensorboard"))
    assert stored["chat_command"] == f"rstar-rollout chat --model {tmp_path / 'policy'}"
    assert stored["chat_command"] in text.getvalue()
