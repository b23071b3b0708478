"""Partial rollouts: a step does not wait for its longest ones, and the next goes on with them, after `kill -9` too.

One run of two steps. With the first weights the rollouts of one problem never end, so the first step stops them; the
trainer is killed in the second, which is then done again from the checkpoint.
"""

import math
import signal

import pytest
from e2e_processes import nothing_left
from e2e_runs import SCRIPTED_TRAINER

SAMPLES = 4
STAGE = {
    "name": "rl-1",
    "steps": 2,
    "problems_per_step": 2,
    "group_size": 2,
    "rollouts_per_problem": SAMPLES,
    "max_turns": 3,
    "max_response_tokens": 1500,
    "learning_rate": 1e-3,
    "loss": {"engine_ratio_cap": 2.0},
    "partial": {"extra_problems": 1},
}
LONG = "rl-1/0/q2"


@pytest.fixture(scope="module")
def run(make_light):
    workplace = make_light()
    workplace.train_on(("what", "what", "long: what"))
    gates = workplace.gates()
    gates.open("rl-1", 0)
    trainer = workplace.start("run", "light", {"stages": [STAGE]}, trainer=SCRIPTED_TRAINER)
    trainer.until(lambda: gates.reached("rl-1", 1, 0), "the second step has begun")
    trainer.until(lambda: trainer.run.checkpoints() == ["step-000001"], "the first checkpoint is there")
    trainer.signal(signal.SIGKILL)
    trainer.wait()
    nothing_left(workplace.mark)
    gates.open("rl-1", 1)
    return workplace.resume("run", trainer=SCRIPTED_TRAINER).succeed()


def figures(run, step):
    return run.steps("rl-1")[step][1]


def policy_spans(rollout, turn):
    return [span for span in rollout["spans"] if span["kind"] == "policy" and span["turn"] == turn]


def continued(run):
    return [rollout for rollout in run.trajectories("rl-1", 2) if rollout["group_id"] == LONG]


def test_step_ends_with_the_groups_that_it_waits_for(run):
    assert {rollout["problem_id"] for rollout in run.trajectories("rl-1", 1)} == {"q0", "q1"}
    assert (figures(run, 1)["groups_carried"], figures(run, 1)["rollouts_stopped"]) == (1, SAMPLES)


def test_what_it_has_stopped_is_delivered_once_by_the_next(run):
    assert sorted(rollout["sample_index"] for rollout in continued(run)) == list(range(SAMPLES))
    assert {rollout["end_reason"] for rollout in continued(run)} == {"answered"}
    assert figures(run, 2)["groups_carried"] == 0


def test_turn_that_was_cut_says_which_weights_wrote_which_part(run):
    for rollout in continued(run):
        assert {span["weight_version"] for span in policy_spans(rollout, 0)} == {1}
        parts = [(len(span["token_ids"]), span["weight_version"]) for span in policy_spans(rollout, 1)]
        assert parts[0] == (8, 1)
        assert [version for _, version in parts] == [1, 2]


def test_tool_call_before_the_cut_is_not_made_again(run):
    assert [len(rollout["tool_calls"]) for rollout in continued(run)] == [1] * SAMPLES


def test_answers_are_scored_as_if_nothing_had_been_cut(run):
    assert {rollout["sample_index"]: rollout["reward"] for rollout in continued(run)} == {0: 1, 1: 0, 2: 1, 3: 0}


def test_off_policy_tokens_are_counted_and_trained_on(run):
    assert figures(run, 2)["rollouts_off_policy"] == SAMPLES
    assert 0 < figures(run, 2)["off_policy_token_share"] < 1
    assert figures(run, 1)["off_policy_token_share"] == 0
    assert figures(run, 2)["groups_kept"] == 2
    assert math.isfinite(figures(run, 2)["loss"])
