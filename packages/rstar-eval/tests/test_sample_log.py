"""The file of samples: crashes, resuming, and samples that do not belong together."""

import json

import pytest

from rstar_eval.problems import EvalProblem
from rstar_eval.sample_log import SampleLog, read_samples
from rstar_eval.settings import EvalSettings
from rstar_protos.errors import UserInputError


def filled(path, *samples):
    with SampleLog(path) as log:
        for sample in samples:
            log.append(sample)
    return path


def test_every_sample_is_in_the_file_when_append_returns(tmp_path, make_sample):
    with SampleLog(tmp_path / "s.jsonl") as log:
        log.append(make_sample("a"))
        assert [sample.problem_id for sample in read_samples(tmp_path / "s.jsonl")] == ["a"]


def test_opening_again_gives_the_union(tmp_path, make_sample):
    path = filled(tmp_path / "s.jsonl", make_sample("a"))
    filled(path, make_sample("b"))
    assert [sample.problem_id for sample in read_samples(path)] == ["a", "b"]


def test_line_cut_by_a_crash_is_dropped_and_the_next_one_is_whole(tmp_path, make_sample):
    path = filled(tmp_path / "s.jsonl", make_sample("a"), make_sample("b"))
    whole = path.read_bytes()
    for cut in range(1, len(whole.splitlines()[1]) + 1, 37):
        path.write_bytes(whole[:-cut])
        filled(path, make_sample("c"))
        assert [sample.problem_id for sample in read_samples(path)] == ["a", "c"]


def test_sample_made_again_replaces_the_lost_one(tmp_path, make_sample):
    path = filled(tmp_path / "s.jsonl", make_sample("a", status="infrastructure"), make_sample("a"))
    assert [sample.status for sample in read_samples(path)] == ["correct"]


def test_damage_inside_the_file_is_refused_by_line(tmp_path, make_sample):
    path = filled(tmp_path / "s.jsonl", make_sample("a"), make_sample("b"))
    first, second = path.read_bytes().splitlines(keepends=True)
    for damaged in (b"{}\n", b"[]\n", b"nonsense\n", b"\xff\n", first[: len(first) // 2] + b"\n"):
        path.write_bytes(damaged + second)
        with pytest.raises(UserInputError, match=r"line 1"):
            SampleLog(path)


def test_two_evaluations_do_not_write_to_one_file(tmp_path):
    with SampleLog(tmp_path / "s.jsonl"), pytest.raises(UserInputError, match="another evaluation"):
        SampleLog(tmp_path / "s.jsonl")


def test_file_is_free_again_afterwards(tmp_path):
    SampleLog(tmp_path / "s.jsonl").close()
    SampleLog(tmp_path / "s.jsonl").close()


@pytest.mark.parametrize(
    ("problem", "policy", "settings", "named"),
    [
        (EvalProblem("p", "text of p", "2"), "other", EvalSettings(), "policy"),
        (EvalProblem("p", "text of p", "2"), "sft", EvalSettings(temperature=1.0), "temperature"),
        (EvalProblem("p", "text of p", "2"), "sft", EvalSettings(tools_enabled=False), "tools_enabled"),
        (EvalProblem("p", "text of p", "3"), "sft", EvalSettings(), "problem p"),
        (EvalProblem("p", "new text", "2"), "sft", EvalSettings(), "problem p"),
    ],
)
def test_samples_of_something_else_are_refused(tmp_path, make_sample, problem, policy, settings, named):
    path = filled(tmp_path / "s.jsonl", make_sample("p", policy="sft"))
    with SampleLog(path) as log, pytest.raises(UserInputError, match=named):
        log.check_belongs([problem], policy, settings.sampling_key)


def test_samples_of_the_same_thing_are_accepted(tmp_path, make_sample):
    path = filled(tmp_path / "s.jsonl", make_sample("p", policy="sft"))
    with SampleLog(path) as log:
        log.check_belongs([EvalProblem("p", "text of p", "2")], "sft", EvalSettings(samples=4).sampling_key)
        assert log.get(("p", 0)) is not None


def test_missing_file_is_refused(tmp_path):
    with pytest.raises(UserInputError, match="absent"):
        read_samples(tmp_path / "absent.jsonl")


def test_sampling_settings_stand_beside_each_score(tmp_path, make_sample):
    path = filled(tmp_path / "s.jsonl", make_sample("a"))
    line = json.loads(path.read_text())
    assert line["reward"] == 1
    assert line["settings"]["temperature"] == EvalSettings().temperature
