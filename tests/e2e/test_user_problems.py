"""Real problems from a user's file train a step: JSONL, and the same rows as parquet in the column layout of verl."""

import json

import pyarrow
import pyarrow.parquet
import pytest
from e2e_runs import SCRIPTED_TRAINER

pytestmark = pytest.mark.shared_data

ROWS = 40
ONE_STEP = {"stages.rl-1.steps": 1}


@pytest.fixture(scope="module")
def rows(shared_data):
    with (shared_data / "gsm8k_train_2000.jsonl").open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


@pytest.fixture
def workplace(light, shared_data):
    """The scripted policy knows these problems too."""
    with (light.folder / "gold.jsonl").open("a", encoding="utf-8") as file:
        file.write((shared_data / "gsm8k_train_2000.jsonl").read_text(encoding="utf-8"))
    return light


def write_verl_parquet(path, rows):
    """As verl's own preparation of GSM8K writes it: instructions in the message, the bare question beside it."""
    columns = [
        {
            "data_source": row["source"],
            "prompt": [{"role": "user", "content": f'{row["problem"]} Put the final answer after "####".'}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": row["answer"]},
            "extra_info": {"split": "train", "index": index, "question": row["problem"], "answer": row["solution"]},
        }
        for index, row in enumerate(rows)
    ]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(columns), path)


def check_one_step(run, rows):
    """One step was trained on problems and answers of the file."""
    ((_, figures),) = run.steps().values()
    assert (figures["groups_kept"], figures["update_skipped"]) == (2, 0)
    assert figures["grad_norm"] > 0
    answers = {row["problem"].strip(): row["answer"].replace(",", "") for row in rows}
    for rollout in run.trajectories("rl-1", 1):
        prompt = next(segment["text"] for segment in rollout["segments"] if segment["kind"] == "prompt")
        (gold,) = {answer for text, answer in answers.items() if text in prompt}
        assert rollout["gold"] == gold


def test_jsonl_file_trains_a_step(workplace, shared_data, rows):
    settings = {"data.train.path": shared_data / "gsm8k_train_2000.jsonl", **ONE_STEP}
    check_one_step(workplace.start("run", "light", settings, trainer=SCRIPTED_TRAINER).succeed(), rows)


def test_parquet_file_in_verl_layout_trains_a_step(workplace, rows):
    write_verl_parquet(workplace.folder / "train.parquet", rows[:ROWS])
    settings = {"data.train.path": "train.parquet", **ONE_STEP}
    check_one_step(workplace.start("run", "light", settings, trainer=SCRIPTED_TRAINER).succeed(), rows[:ROWS])


@pytest.mark.heavy
@pytest.mark.timeout(2400)
def test_real_policy_is_rolled_out_and_scored_on_them(make_real, taught, shared_data, rows):
    settings = {
        "model.source": taught,
        "sft.enabled": False,
        "data.train.path": shared_data / "gsm8k_train_2000.jsonl",
        "stages.rl-1.problems_per_step": 2,
        **ONE_STEP,
    }
    run = make_real().start("run", "real", settings).succeed()
    ((_, figures),) = run.steps().values()
    assert figures["rollouts"] == 16
    assert figures["unscorable"] == 0
    # So small a model may fail at all of them; then the step is a counted skip.
    assert figures["update_skipped"] == float(figures["groups_kept"] == 0)
    answers = {row["id"]: row["answer"].replace(",", "") for row in rows}
    found = run.trajectories("rl-1", 1)
    assert all(rollout["gold"] == answers[rollout["problem_id"]] for rollout in found)
    assert any(call["status"] == "ok" for rollout in found for call in rollout["tool_calls"])
