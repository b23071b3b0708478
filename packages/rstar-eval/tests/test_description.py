"""A stored evaluation: what was asked for, and the report made again."""

import pytest

from rstar_eval.description import DESCRIPTION_FILE, SAMPLES_FILE, Description, load_report, merge_problems
from rstar_eval.problems import EvalProblem
from rstar_eval.sample_log import SampleLog
from rstar_eval.settings import EvalSettings
from rstar_protos.errors import UserInputError

PROBLEMS = (EvalProblem("a", "1+1?", "2", ("easy",)), EvalProblem("b", "é\u2028", "3"))
DESCRIPTION = Description("base", "sha", EvalSettings(samples=2), PROBLEMS, ("problems.jsonl",))


def test_description_returns_from_its_folder(tmp_path):
    DESCRIPTION.write(tmp_path / "new")
    assert Description.read(tmp_path / "new") == DESCRIPTION


def test_stored_evaluation_reports_what_is_missing(tmp_path, make_sample):
    DESCRIPTION.write(tmp_path)
    with SampleLog(tmp_path / SAMPLES_FILE) as log:
        log.append(make_sample("a", 0))
        log.append(make_sample("a", 1, "wrong"))
    report = load_report(tmp_path)
    assert (report.name, report.pass_at_1.mean, report.missing) == ("base", 0.5, 2)


@pytest.mark.parametrize("content", ["", "{}", "[]", "null", '{"name": "x"}', '{"problems": 3}'])
def test_damaged_description_is_refused_in_one_line(tmp_path, content):
    (tmp_path / DESCRIPTION_FILE).write_text(content)
    with pytest.raises(UserInputError, match=DESCRIPTION_FILE):
        Description.read(tmp_path)


def test_folder_without_evaluation_is_refused(tmp_path):
    with pytest.raises(UserInputError, match="rstar-eval run"):
        load_report(tmp_path)


def test_files_with_a_common_id_are_refused():
    assert merge_problems([PROBLEMS[:1], PROBLEMS[1:]]) == list(PROBLEMS)
    with pytest.raises(UserInputError, match="'a'"):
        merge_problems([PROBLEMS, PROBLEMS[:1]])
